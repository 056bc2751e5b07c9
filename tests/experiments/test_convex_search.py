"""Races and the search, against running every step size to its end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.convex.objective import Objective
from experiments.convex.plain import averaged_models, weighted_average
from experiments.convex.race import Reached, Run, race
from experiments.convex.search import Runner, first_window, search
from experiments.convex.setup import Setup, local, quadratic
from experiments.convex.simulation import Simulation
from experiments.convex.stepsizes import FAMILIES, Family, StepSize
from experiments.convex.store import Store
from experiments.convex.study import Bench, config, critical_path, find
from experiments.logistic import Logistic, minimise
from localsgd.errors import UserError

EPSILONS = (0.06, 0.04)


@pytest.fixture(scope="module")
def bench(problem: Logistic) -> Bench:
    minimum = minimise(problem)
    targets = {str(epsilon): minimum.value + epsilon for epsilon in EPSILONS}
    return Bench("small", problem, Objective(problem), minimum, targets)


def course(problem: Logistic, setup: Setup, size: StepSize, most: int) -> Iterator[float]:
    """f after each round, of the better of the last model and the average."""
    models = []
    for model, _ in zip(averaged_models(problem, setup, size), range(most), strict=False):
        models.append(model)
        yield min(problem.value(model), problem.value(weighted_average(models)))


def reached_at(values: Iterable[float], target: float) -> tuple[int, float] | None:
    """Rounds to the target and f there."""
    rounds = enumerate(values, start=1)
    return next(((count, value) for count, value in rounds if value <= target), None)


NO_CAPS: dict[Family, list[float]] = {family: [math.inf] * 2 for family in FAMILIES}
SETUP = local(workers=3, batch=2, local_steps=2, seed=0)


def test_race_equals_running_each_to_its_end(problem: Logistic, bench: Bench) -> None:
    sizes = [StepSize(family, i) for family in ("constant", "decaying") for i in range(-7, 0)]
    targets = [bench.minimum.value + epsilon for epsilon in np.linspace(0.2, 0.05, 16)]
    caps = {family: [math.inf] * 16 for family in FAMILIES}
    runs = race(Simulation(bench.problem, SETUP, sizes), bench.objective, targets, caps)
    assert {run.size for run in runs} == set(sizes)
    assert all(any(run.reached[target] for run in runs) for target in range(16))
    for run in runs:
        values = list(course(problem, SETUP, run.size, int(max(run.until))))
        for target, reached, until in zip(targets, run.reached, run.until, strict=True):
            expected = reached_at(values[: int(until)], target)
            if reached is None:
                assert expected is None
            else:
                assert expected is not None
                assert reached.clock == expected[0] == reached.steps / 2 == reached.syncs[0]
                assert reached.value == pytest.approx(expected[1], abs=1e-12)


def test_race_ends_under_its_caps(bench: Bench) -> None:
    sizes = [StepSize("constant", -5), StepSize("constant", -4)]
    targets = list(bench.targets.values())
    free = race(Simulation(bench.problem, SETUP, sizes), bench.objective, targets, NO_CAPS)
    best = [min(there.clock for r in free if (there := r.reached[i])) for i in range(2)]
    at = race(Simulation(bench.problem, SETUP, sizes), bench.objective, targets, {"constant": best})
    assert at == free
    below: dict[Family, list[float]] = {"constant": [best[0], best[1] - 1]}
    cut = race(Simulation(bench.problem, SETUP, sizes), bench.objective, targets, below)
    assert [run.reached[0] for run in cut] == [run.reached[0] for run in free]
    assert [(run.reached[1], run.until[1]) for run in cut] == [(None, best[1] - 1)] * 2


def test_search_finds_what_the_paper_asks_for(
    problem: Logistic, bench: Bench, tmp_path: Path
) -> None:
    found = find(bench, SETUP, Store(tmp_path / "runs.jsonl"))
    for best, target in zip(found.best, bench.targets.values(), strict=True):
        for family, (size, reached) in best.by_family.items():
            most = int(reached.clock)
            own = reached_at(course(problem, SETUP, size, most), target)
            assert own is not None
            assert own[0] == most
            for offset in (-2, -1, 1, 2):
                other = StepSize(family, size.exponent + offset)
                beside = reached_at(course(problem, SETUP, other, most), target)
                assert beside is None or beside >= (most, reached.value)
        assert best.reached.clock == min(r.clock for _, r in best.by_family.values())


def made_up(clocks: Mapping[StepSize, float]) -> tuple[list[StepSize], Runner]:
    """A runner that answers from a table, and the list of what it was asked for."""
    asked: list[StepSize] = []

    def run(sizes: Sequence[StepSize], caps: Mapping[Family, Sequence[float]]) -> Iterable[Run]:
        for size in sizes:
            asked.append(size)
            clock = clocks.get(size, math.inf)
            cap = caps[size.family][0]
            reached = Reached(clock, 0.0, False, 1, (1,)) if clock <= min(cap, 1e9) else None
            yield Run(size, (reached,), (min(clock, cap),))

    return asked, run


def test_search_widens_until_the_best_has_two_neighbours_on_either_side() -> None:
    table = {StepSize("constant", i): 100.0 + abs(i - 9) for i in range(-9, 30)}
    asked, run = made_up(table)
    found = search(run, [], 1, {"constant": range(0, 3)})
    assert found.best[0].size == StepSize("constant", 9)
    assert found.runs == len(asked) == len(set(asked))
    assert {size.exponent for size in asked} == set(range(0, 12))


def test_search_goes_down_where_all_step_sizes_are_too_large() -> None:
    table = {StepSize("constant", i): 100.0 for i in range(-20, -5)}
    table |= {StepSize("decaying", 0): 200.0}
    _, run = made_up(table)
    found = search(run, [], 1, {"constant": range(-2, 2), "decaying": range(-1, 2)})
    # Equal runs: the smallest c of them that the search came to.
    assert found.best[0].size.family == "constant"
    assert found.best[0].reached.clock == 100.0


def test_search_gives_up_on_a_family_that_never_comes() -> None:
    asked, run = made_up({StepSize("decaying", 0): 200.0})
    found = search(run, [], 1, {"constant": range(-2, 2), "decaying": range(-1, 2)})
    assert found.best[0].size == StepSize("decaying", 0)
    assert "constant" not in found.best[0].by_family
    assert min(size.exponent for size in asked) == -14


def test_equal_runs_count_for_the_smaller_step_size() -> None:
    asked, run = made_up({StepSize("decaying", i): 50.0 for i in range(-3, 60)})
    found = search(run, [], 1, {"decaying": range(-5, 1)})
    assert found.best[0].size == StepSize("decaying", -3)
    assert len(asked) == 6


def test_quadratic_rule_is_judged_by_its_cost(bench: Bench, tmp_path: Path) -> None:
    setup = quadratic(3, 2, 1, 4.0, seed=0)
    found = find(bench, setup, Store(tmp_path / "runs.jsonl"), factors=(25.0,))
    reached = found.best[0].reached
    assert reached.clock == reached.steps * 2 + 25 * reached.syncs[0]
    assert reached.steps > reached.syncs[0]


def test_runs_are_kept_and_taken_up(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    first = find(bench, SETUP, Store(path))
    before = path.read_text()
    assert find(bench, SETUP, Store(path)) == first
    assert path.read_text() == before
    assert find(bench, local(3, 2, 2, seed=1), Store(path)) != first


def test_an_interrupted_search_ends_as_an_uninterrupted_one(bench: Bench, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    setup = local(1, 1, 8, seed=3)
    first = find(bench, setup, Store(whole))
    lines = whole.read_text().splitlines(keepends=True)
    cut.write_text(lines[0] + lines[-1][: len(lines[-1]) // 2])
    store = Store(cut)
    assert cut.read_text() == lines[0]
    again = find(bench, setup, store)
    assert [(best.size, best.reached) for best in again.best] == [
        (best.size, best.reached) for best in first.best
    ]


@pytest.mark.parametrize(
    "line",
    [
        '{"config": {}}',
        "5",
        "[1]",
        '{"config": {}, "seconds": 1, "runs": [[1, 2, [[1]], [1]]]}',
        '{"config": {}, "seconds": 1, "runs": [["constant", 2, [[1, 2, true, 3]], [1]]]}',
        '{"config": {}, "seconds": "x", "runs": []}',
        "[" * 100_000,
    ],
)
def test_names_the_line_that_is_no_record(tmp_path: Path, line: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(UserError, match=r"runs.jsonl:1 is no record of a race") as refused:
        Store(path)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(b"\xff\n")
    with pytest.raises(UserError, match=r"runs.jsonl is no text"):
        Store(path)


def test_configurations_differ_in_all_that_matters(bench: Bench) -> None:
    setups = [
        local(4, 2, 2, 0),
        local(4, 2, 2, 1),
        local(4, 2, 4, 0),
        local(4, 4, 2, 0),
        local(8, 2, 2, 0),
        quadratic(4, 2, 2, 1.0, 0),
        quadratic(4, 2, 2, 2.0, 0),
    ]
    keys = {repr(config(bench, setup)) for setup in setups}
    assert len(keys) == len(setups)
    # The price of a sync chooses among runs of the quadratic rule alone.
    for setup in setups:
        same = config(bench, setup, (25.0,)) == config(bench, setup, (1000.0,))
        assert same == setup.lockstep
    assert config(bench, setups[0]) != config(replace(bench, epsilon=0.01), setups[0])


def test_cost_along_the_critical_path() -> None:
    assert critical_path(steps=12, syncs=[3], batch=16, factors=[25]) == 12 * 16 + 3 * 25
    assert critical_path(12, [3, 1], 16, [1, 25]) == 192 + 3 + 25


def test_small_batches_start_from_small_steps() -> None:
    assert first_window(1)["constant"] == range(-7, 0)
    assert first_window(256)["constant"] == range(-3, 4)
    assert first_window(2**20)["constant"] == range(-3, 4)
