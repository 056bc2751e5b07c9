"""Intervals and judgements, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from experiments.claims import evidence, judge, paired
from localsgd.errors import UserError


def test_an_interval_by_hand() -> None:
    """Student's t of 2 degrees of freedom is 4.302653 at 97.5 %."""
    found = paired([1.0, 2.0, 3.0])
    assert (found.mean, found.deviation, found.n) == (2.0, 1.0, 3)
    assert found.high - found.mean == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert found.mean - found.low == found.high - found.mean


def test_one_difference_decides_nothing_and_none_has_no_mean() -> None:
    found = paired([3.0])
    assert math.isnan(found.low)
    assert math.isnan(found.deviation)
    for sign in (-1, 1):
        assert judge(found, sign) == "not decidable at this scale"  # type: ignore[arg-type]
    assert "too few" in evidence(found)
    with pytest.raises(UserError, match="one for each seed"):
        paired([])


def test_a_claim_holds_fails_or_stays_open() -> None:
    above, across = paired([1.0, 1.1, 0.9]), paired([-1.0, 1.1, 0.9])
    assert judge(above, 1) == "reproduced"
    assert judge(above, -1) == "not reproduced"
    assert judge(across, 1) == judge(across, -1) == "not decidable at this scale"


def test_a_margin_forgives_that_much() -> None:
    """-0.4 to -0.2 is no worse within 0.5, and worse within 0.1."""
    below = paired([-0.3, -0.32, -0.28])
    assert judge(below, 1) == "not reproduced"
    assert judge(below, 1, margin=0.5) == "reproduced"
    assert judge(below, 1, margin=0.1) == "not reproduced"
    assert judge(below, 1, margin=0.3) == "not decidable at this scale"


def test_evidence_has_mean_interval_and_number() -> None:
    said = evidence(paired([1.0, 2.0, 3.0]), " points")
    assert said == "+2 points, 95 % interval -0.484 to +4.48, n = 3"
