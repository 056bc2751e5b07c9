"""The batched simulation against plain loops, and against a textbook."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from experiments.convex import products
from experiments.convex.objective import sigmoid
from experiments.convex.plain import averaged_models, weighted_average
from experiments.convex.samples import Batches, stream
from experiments.convex.setup import Setup, hierarchical, local, quadratic, switched
from experiments.convex.simulation import Simulation
from experiments.convex.stepsizes import Gammas, StepSize
from experiments.logistic import Logistic
from localsgd.errors import UserError
from localsgd.schedule.fixed import every

SIZES = [
    StepSize("constant", -4),
    StepSize("constant", 0),
    StepSize("decaying", -8),
    StepSize("decaying", 2),
]

SETUPS = {
    "mini-batch": local(workers=4, batch=3, local_steps=1, seed=1),
    "local": local(workers=4, batch=3, local_steps=5, seed=1),
    "one worker": local(workers=1, batch=2, local_steps=3, seed=2),
    "batch of one": local(workers=3, batch=1, local_steps=2, seed=3),
    "post-local": switched(workers=4, batch=3, local_steps=4, after=6, seed=1),
    "hierarchical": hierarchical(blocks=3, members=2, batch=2, steps=(2, 3), seed=1),
    "inner every step": hierarchical(blocks=2, members=2, batch=2, steps=(1, 3), seed=1),
    "three levels": Setup(2, (2, 3, 2), (every(2), every(1), every(2)), seed=4),
}


@pytest.mark.parametrize("name", SETUPS)
def test_equals_a_plain_loop_over_workers(problem: Logistic, name: str) -> None:
    setup = SETUPS[name]
    simulation = Simulation(problem, setup, SIZES)
    plain = [averaged_models(problem, setup, size) for size in SIZES]
    so_far: list[list[np.ndarray]] = [[] for _ in SIZES]
    for _ in range(12):
        simulation.next_round()
        for column, models in enumerate(plain):
            so_far[column].append(next(models))
            np.testing.assert_allclose(
                simulation.models[:, column], so_far[column][-1], rtol=0, atol=1e-12
            )
            average = weighted_average(so_far[column])
            np.testing.assert_allclose(simulation.averages[:, column], average, rtol=0, atol=1e-12)
    assert np.abs(simulation.models).max() > 0.1


def test_equals_a_plain_loop_with_the_quadratic_rule(problem: Logistic) -> None:
    setup = quadratic(workers=3, batch=2, lowest=1, alpha=20.0, seed=1)
    size = StepSize("decaying", -1)
    simulation = Simulation(problem, setup, [size])
    for model in itertools.islice(averaged_models(problem, setup, size), 15):
        simulation.next_round()
        np.testing.assert_allclose(simulation.models[:, 0], model, rtol=0, atol=1e-12)
    # H = 1 while gamma > 20, several steps later: the rounds have grown.
    assert simulation.steps > simulation.rounds == 15


@pytest.mark.parametrize("local_steps", [1, 4])
def test_one_worker_is_textbook_sgd_bit_for_bit(problem: Logistic, local_steps: int) -> None:
    size, batch = StepSize("decaying", 1), 3
    simulation = Simulation(problem, local(1, batch, local_steps, seed=7), [size])
    rows, draws = problem.signed, stream(7, 0)
    w = np.zeros(problem.features)
    for step in range(40):
        gamma = Gammas([size], problem.examples)(step)[0]
        picked = draws.integers(problem.examples, size=batch)
        parts = [slice(rows.indptr[i], rows.indptr[i + 1]) for i in picked]
        pulls = [sigmoid(np.array([_dot(rows.data[p], w[rows.indices[p]])]))[0] for p in parts]
        w = w * (1 - gamma * problem.regularisation)
        for part, pull in zip(parts, pulls, strict=True):
            w[rows.indices[part]] += rows.data[part] * (pull * (-gamma / batch))
        if (step + 1) % local_steps == 0:
            simulation.next_round()
            assert np.array_equal(simulation.models[:, 0], w)


def _dot(values: np.ndarray, weights: np.ndarray) -> float:
    total = 0.0
    for value, weight in zip(values, weights, strict=True):
        total += value * weight
    return total


def test_columns_that_stay_go_on_as_before(problem: Logistic) -> None:
    setup = SETUPS["local"]
    all_ = Simulation(problem, setup, SIZES)
    some = Simulation(problem, setup, SIZES)
    for _ in range(3):
        all_.next_round()
        some.next_round()
    some.keep(np.array([1, 3]))
    for _ in range(3):
        all_.next_round()
        some.next_round()
    assert some.sizes == [SIZES[1], SIZES[3]]
    assert np.array_equal(some.models, all_.models[:, [1, 3]])
    assert np.array_equal(some.averages, all_.averages[:, [1, 3]])


def test_counts_steps_and_syncs(problem: Logistic) -> None:
    simulation = Simulation(problem, SETUPS["hierarchical"], SIZES)
    for _ in range(4):
        simulation.next_round()
    # Of the three inner syncs of a round the last is the outer one's.
    assert (simulation.rounds, simulation.steps, simulation.syncs) == (4, 24, [8, 4])


def test_a_worker_draws_the_same_whoever_works_beside_it(problem: Logistic) -> None:
    rows = problem.signed
    few, many = Batches(rows, 2, 3, seed=5), Batches(rows, 4, 3, seed=5)
    for _ in range(3):
        short, long = products.as_array(few.joined()), products.as_array(many.joined())
        assert np.array_equal(short.toarray(), long[:6].toarray())


def test_workers_and_seeds_draw_apart() -> None:
    draws = [
        stream(seed, worker).integers(1000, size=50) for seed, worker in ((0, 0), (0, 1), (1, 0))
    ]
    assert len({tuple(one) for one in draws}) == 3
    assert np.array_equal(draws[1], stream(0, 1).integers(1000, size=50))


def test_products_are_the_same_without_the_private_loops(
    problem: Logistic, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batches(problem.signed, 3, 2, seed=5).apart()
    rng = np.random.default_rng(0)
    models, pulls = rng.normal(size=(3 * problem.features, 4)), rng.normal(size=(6, 4))
    fast, moved = products.multiply(batch, models), models.copy()
    products.add_transposed(batch, pulls, moved)
    monkeypatch.setattr(products, "csr_matvecs", None)
    monkeypatch.setattr(products, "csc_matvecs", None)
    slow, moved_slowly = products.multiply(batch, models), models.copy()
    products.add_transposed(batch, pulls, moved_slowly)
    np.testing.assert_allclose(fast, slow, rtol=0, atol=1e-13)
    np.testing.assert_allclose(moved, moved_slowly, rtol=0, atol=1e-13)


def test_step_sizes_of_the_paper() -> None:
    gammas = Gammas([StepSize("constant", 2), StepSize("decaying", -3)], examples=1000)
    assert list(gammas(0)) == [128, 32]
    assert list(gammas(4)) == [128, 25]


def test_refuses_several_step_sizes_where_rounds_depend_on_them(problem: Logistic) -> None:
    with pytest.raises(UserError, match="one at a time"):
        Simulation(problem, quadratic(2, 2, 1, 1.0, seed=0), SIZES)


def test_refuses_levels_without_schedules() -> None:
    with pytest.raises(UserError, match="one for each level"):
        Setup(1, (2, 2), (every(1),), seed=0)
