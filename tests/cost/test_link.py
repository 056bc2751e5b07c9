"""alpha and beta from times that a known link would give, and from real all-reduces."""

from __future__ import annotations

import pytest

from localsgd import UserError
from localsgd.cost.allreduce import Link, ring, tree
from localsgd.cost.link import fitted
from localsgd.wire import InProcess
from localsgd.wire.timing import measured

SIZES = (1e3, 1e5, 1e6, 1e7)


@pytest.mark.parametrize("algorithm", [ring, tree])
@pytest.mark.parametrize("link", [Link(1e-4, 8e-8), Link(0.0, 1e-9), Link(0.02, 0.0)])
def test_the_link_that_made_the_times_is_found(link: Link, algorithm) -> None:
    seconds = [algorithm(5, size).seconds(link) for size in SIZES]
    found = fitted(5, SIZES, seconds, algorithm)
    assert found.alpha == pytest.approx(link.alpha, rel=1e-9, abs=1e-12)
    assert found.beta == pytest.approx(link.beta, rel=1e-9, abs=1e-16)


def test_neither_is_negative() -> None:
    falling, steep = fitted(2, SIZES, (4.0, 3.0, 2.0, 1.0)), fitted(2, (1e3, 1e6), (1e-9, 1.0))
    assert falling.beta == 0.0 < falling.alpha
    assert steep.alpha == 0.0 < steep.beta


def test_one_member_has_no_link() -> None:
    assert fitted(1, SIZES, (1.0,) * 4) == Link(0.0, 0.0)


def test_times_are_of_all_sizes() -> None:
    sizes, seconds = measured(InProcess(3), hosted=3, scalars=(16, 64), repeats=1)
    assert sizes == [64, 256]
    assert len(seconds) == 2
    assert min(seconds) > 0


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="at least 2 sizes"):
        fitted(2, (1e3,), (1.0,))
    with pytest.raises(UserError, match="0 seconds"):
        fitted(2, (1e3, 1e4), (0.0, 1.0))
