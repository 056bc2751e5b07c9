"""The simulation of the rule of verdicts is of the rule itself."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.claims import OPEN, verdict
from experiments.power import SHAPES, decided, p_of_signs, p_of_t
from localsgd.basics.paired import Test


@pytest.mark.parametrize("n", [3, 5, 10])
def test_its_figures_are_those_of_the_rule_draw_by_draw(n: int) -> None:
    drawn = 0.8 + SHAPES["log-normal"](np.random.default_rng(n), (60, n))
    slow = [Test(tuple(row)) for row in drawn.tolist()]
    np.testing.assert_allclose(p_of_t(drawn), [one.p for one in slow], rtol=1e-9)
    np.testing.assert_allclose(p_of_signs(drawn), [one.flips for one in slow], rtol=1e-12)
    states = [verdict(one) for one in slow]
    above, below = decided(drawn)
    assert above == np.mean([state == "reproduced" for state in states])
    assert below == np.mean([state == "not reproduced" for state in states])
    assert (states.count(OPEN) == 60) == (n == 3)


def test_differences_have_mean_0_and_deviation_1() -> None:
    for draw in SHAPES.values():
        drawn = draw(np.random.default_rng(0), (200_000,))
        assert abs(drawn.mean()) < 0.02
        assert abs(drawn.std() - 1) < 0.03
