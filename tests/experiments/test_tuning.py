from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments import engine, tuning
from experiments.arms import arm
from experiments.scales import SCALES
from experiments.store import Store
from experiments.study import Job, Record, Scale
from experiments.tuning import FACTORS, MOST, due

TUNES: Scale = replace(SCALES["smoke"], tunes=True, seeds=2)


def grown(score: Callable[[float], float]) -> dict[float, float]:
    """All points of the grid of a function."""
    known: dict[float, float] = {}
    while new := due(known):
        known |= {factor: score(factor) for factor in new}
    return known


@pytest.mark.parametrize("best", [0.2, 0.97, 1.0, 1.5, 3.0])
def test_a_grid_grows_until_the_best_of_a_parabola_is_inside(best: float) -> None:
    known = grown(lambda factor: -((factor - best) ** 2))
    ordered = sorted(known)
    found = ordered.index(max(ordered, key=lambda factor: known[factor]))
    assert 0 < found < len(ordered) - 1
    assert ordered[found - 1] < best < ordered[found + 1]
    assert ordered[0] > 0
    assert len(known) <= 14


def test_a_grid_without_a_best_is_given_up() -> None:
    assert len(grown(lambda factor: factor)) == MOST
    assert min(grown(lambda factor: -factor)) > 0
    assert set(grown(lambda factor: 0.0)) == set(FACTORS)
    assert min(grown(lambda factor: 0.0 if factor < 0.6 else float("-inf"))) < 0.5


@dataclass
class Parabola:
    """Records of runs whose accuracy has its best at a rate."""

    best: float
    scale: Scale = TUNES
    asked: list[float] = field(default_factory=list)

    def of(self, job: Any) -> Record | None:
        self.asked.append(job.run.lr)
        return {"test_accuracy": 0.9 - (job.run.lr - self.best) ** 2} if job.run.seed else None


def test_the_tuned_arm_has_the_best_rate_and_its_own_seeds() -> None:
    one = arm(TUNES, "mini-batch", method="mini-batch")
    rate = one.run.lr
    found = tuning.tuned(Parabola(rate * 1.02), one)
    assert found is not None
    assert found.run.lr == pytest.approx(rate * 33 / 32)
    assert [job.run.seed for job in found.jobs] == [0, 1]
    assert found.name == "mini-batch, rate x 1.031"


def test_a_scale_that_tunes_nothing_asks_for_nothing() -> None:
    plain = Parabola(1.0, scale=SCALES["smoke"])
    one = arm(plain.scale, "mini-batch", method="mini-batch")
    assert tuning.later(plain, [one]) == []
    assert tuning.applied(plain, {"a": one}, ["a"]) == {"a": one}
    assert plain.asked == []


def test_a_grid_of_real_runs_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    one = arm(replace(TUNES, seeds=1), "mini-batch", method="mini-batch", train_samples=128)
    place, console = engine.Place(tmp_path / "work"), Console(file=io.StringIO())
    store = Store(TUNES, tmp_path / "out")

    def step(jobs: list[Job]) -> None:
        engine.carry_out(jobs, store, place, 1, console)

    step(list(tuning.later(store, [one]))[:2])  # cut off
    assert len(tuning.scores(store, one)) == 2
    assert tuning.tuned(store, one) is None
    left = [len(tuning.later(store, [one]))]
    while any(store.of(job) is None for job in tuning.later(store, [one])):
        step(list(tuning.later(store, [one])))
        left.append(len(tuning.later(store, [one])))
    assert left[0] == 3
    assert tuning.tuned(store, one) is not None
    (picture,) = tuning.pictures(store, [one])
    assert picture.draw().axes[0].lines
    assert len(picture.jobs) == len(tuning.scores(store, one)) >= 5
