"""The search for a link, on links whose answer is known."""

from __future__ import annotations

import pytest

from benchmarks.network.accuracy.rate import CLOSE, search
from benchmarks.network.refusal import Refused


def share_of_link(rate: int, hidden: float = 0.0, bits: float = 10e6) -> float:
    """DDP's with 0.35 s of compute, of which so much hides what crosses."""
    return 0.35 / (0.35 + max(0.0, bits / rate - hidden))


def test_without_overlap_the_second_point_is_the_rate() -> None:
    *_, found = search(0.5, share_of_link)
    assert found.rate == round(10 / 0.35) * 1_000_000
    assert len(search(0.5, share_of_link)) == 2


def test_with_overlap_the_share_is_met() -> None:
    found = search(0.49, lambda rate: share_of_link(rate, hidden=0.15))[-1]
    assert abs(found.share - 0.49) <= CLOSE
    assert found.share == share_of_link(found.rate, hidden=0.15)


def test_where_no_link_has_it_the_nearest_is_taken() -> None:
    points = search(0.1, share_of_link)
    assert points[-1].rate == 10_000_000
    assert len(points) == len({point.rate for point in points})


def test_a_share_that_cannot_be_is_refused() -> None:
    with pytest.raises(Refused, match=r"share of 1\.2"):
        search(1.2, share_of_link)
