"""f at many points, and the certificates that spare its evaluation."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.convex.objective import Objective, check_targets
from experiments.logistic import Logistic, minimise
from localsgd.errors import UserError


@pytest.fixture
def points(problem: Logistic) -> np.ndarray:
    """[d, 400]: a noisy walk down to nearly the best model, as runs take."""
    rng = np.random.default_rng(1)
    best = np.zeros(problem.features)
    for _ in range(30):
        best -= np.linalg.solve(problem.hessian(best), problem.gradient(best))
    shrink = np.linspace(3, 0, 400)
    return best[:, None] + 0.4 * shrink * rng.normal(size=(problem.features, 400))


def test_values_are_those_of_the_problem(problem: Logistic, points: np.ndarray) -> None:
    slow = [problem.value(point) for point in points.T]
    np.testing.assert_allclose(Objective(problem).values(points), slow, rtol=0, atol=1e-14)


def test_planes_lie_below(problem: Logistic, points: np.ndarray) -> None:
    objective = Objective(problem)
    assert np.all(objective.lower_bounds(points) == -np.inf)
    objective.values_at_most(np.full(50, np.inf), points[:, :50])
    bounds, values = objective.lower_bounds(points), objective.values(points)
    assert np.all(bounds <= values + 1e-12)
    # A plane touches f where it was taken.
    np.testing.assert_allclose(bounds[:50], values[:50], rtol=0, atol=1e-12)


@pytest.mark.parametrize("pool", [1, 3, 256])
def test_finds_exactly_the_points_below_a_target(
    problem: Logistic, points: np.ndarray, pool: int
) -> None:
    values = Objective(problem).values(points)
    objective = Objective(problem, pool)
    minimum = minimise(problem).value
    for epsilon in (0.3, 0.05, 0.01):
        target = minimum + epsilon
        assert 0 < np.sum(values <= target) < 400
        for first in range(0, 400, 20):
            here = slice(first, first + 20)
            found = objective.values_at_most(np.full(20, target), points[:, here])
            expected = np.where(values[here] <= target, values[here], np.inf)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_spares_most_evaluations(problem: Logistic, points: np.ndarray) -> None:
    objective = Objective(problem)
    for first in range(0, 400, 10):
        objective.values_at_most(np.full(10, 0.1), points[:, first : first + 10])
    spent = objective.evaluations
    assert spent.points == 400
    assert spent.evaluated < 40


def test_each_point_has_its_own_target(problem: Logistic, points: np.ndarray) -> None:
    two = points[:, [0, 0]]
    value = problem.value(points[:, 0])
    found = Objective(problem).values_at_most(np.array([value + 0.1, value - 0.1]), two)
    assert np.isfinite(found[0])
    assert found[1] == np.inf


def test_refuses_a_target_below_the_minimum() -> None:
    check_targets([0.2], minimum=0.1)
    with pytest.raises(UserError, match="no run can reach it"):
        check_targets([0.2, 0.05], minimum=0.1)
