"""Paired differences, against numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from localsgd.basics.paired import EXACT, Test, decided, evidence, holm, paired, sign_flips

ABOVE = (1.0, 1.1, 0.9, 1.05, 0.95)
ACROSS = (-1.0, 1.1, 0.9, 0.2, -0.4)


def test_an_interval_by_hand() -> None:
    """Student's t of 2 degrees of freedom is 4.302653 at 97.5 %."""
    found = paired([1.0, 2.0, 3.0])
    assert (found.mean, found.deviation, found.n) == (2.0, 1.0, 3)
    assert found.high - found.mean == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert found.mean - found.low == found.high - found.mean


def test_p_is_that_of_students_t() -> None:
    found = Test(ACROSS, -0.5)
    assert found.p == pytest.approx(stats.ttest_1samp(ACROSS, -0.5).pvalue, rel=1e-12)


def test_signs_are_flipped_in_all_ways() -> None:
    signs = itertools.product((-1, 1), repeat=len(ACROSS))
    means = [abs(np.dot(flipped, ACROSS)) for flipped in signs]
    assert sign_flips(ACROSS) == np.mean(np.array(means) >= abs(sum(ACROSS)) - 1e-12)
    assert sign_flips(ABOVE) == 2 / 2**5
    many = [1.0 + 0.01 * n for n in range(EXACT + 8)]
    assert sign_flips(many) == 1e-4


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_evidence_has_mean_interval_and_number() -> None:
    said = evidence(paired([1.0, 2.0, 3.0]), " points")
    assert said == "+2 points, 95 % interval -0.484 to +4.48, n = 3"


def test_what_decides() -> None:
    """Five seeds or more, t and the signs at 5 %, p corrected for the comparisons beside it."""
    assert decided(Test(ABOVE))
    assert not decided(Test(ABOVE[:4]))
    assert not decided(Test(ACROSS))
    assert not decided(Test(ABOVE), p=0.06)
    assert not decided(Test((-0.01, 1.0, 1.1, 0.9, 1.2)))
