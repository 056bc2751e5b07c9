from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments import engine, studies, tuning
from experiments.arms import UNTUNED, arm, values
from experiments.registry import entry
from experiments.scales import SCALES
from experiments.store import Store
from experiments.studies import noise, signs
from experiments.study import Claim, Job, Record, Scale, Study
from experiments.training import TrainJob
from experiments.tuning import FACTORS, MOST, SEED, due

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


def test_a_grid_does_not_stop_inside_what_is_all_too_high() -> None:
    def accuracy(factor: float) -> float:
        if factor > 0.2:
            return 0.11 if factor == 1.0 else 0.1
        return 0.8 - abs(factor - 0.03)

    known = grown(accuracy)
    assert max(known, key=lambda factor: known[factor]) == 1 / 32


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


class Nothing:
    """No records."""

    scale = TUNES

    def of(self, job: Any) -> Record | None:
        return None


def test_what_has_diverged_is_worst_and_no_result() -> None:
    """Its accuracy is that of chance: the first class is the largest of scores that are NaN."""

    class Diverged:
        scale = TUNES

        def of(self, job: Any) -> Record:
            lost = job.run.lr > 0.06 or job.run.seed == 1
            return {"test_accuracy": 0.1 if lost else 0.05, "test_loss": None if lost else 2.0}

    one = arm(replace(TUNES, seeds=2), "mini-batch", method="mini-batch", lr=0.05)
    scores = tuning.scores(Diverged(), one)
    assert {factor: score for factor, score in scores.items() if factor > 1.5} == {2.0: -math.inf}
    assert tuning.best_factor(Diverged(), one) == 1.0
    assert values(Diverged(), one, "test_accuracy") == {0: 5.0}


def test_a_grid_without_points_has_no_picture() -> None:
    assert not tuning.pictures(Nothing(), [arm(TUNES, "mini-batch", method="mini-batch")])


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
    assert left[0] == len(FACTORS) - 2
    assert tuning.tuned(store, one) is not None
    (picture,) = tuning.pictures(store, [one])
    assert picture.draw().axes[0].lines
    assert len(picture.jobs) == len(tuning.scores(store, one)) >= 5


SMALL: Scale = SCALES["small"]
SMALL_TUNES: Scale = replace(SMALL, tunes=True)
TUNED = {
    *("arms", "signs", "votes", "noise", "steps-to-accuracy"),
    *("variants", "same-batch", "nets", "larger-batch", "longer", "lstm"),
}
"""Short names of all whose baselines the paper tunes."""


@dataclass
class Peaked:
    """All training is done, and was best at a factor of the rates that a study begins with.

    Args:
        study: whose rates.
        scale: of the records.
        best: the factor, of a job.
        missing: jobs that are not done.
    """

    study: Study
    scale: Scale = SMALL_TUNES
    best: Callable[[TrainJob], float] = lambda job: 33 / 32
    missing: Callable[[TrainJob], bool] = lambda job: False

    def __post_init__(self) -> None:
        jobs = [job for job in self.study.jobs(SMALL) if isinstance(job, TrainJob)]
        self.rates = {job.run.lr for job in jobs if job.run.lr}

    def of(self, job: Job) -> Record | None:
        if not isinstance(job, TrainJob) or self.missing(job):
            return None
        score = 0.8 - abs(self.factor(job) - self.best(job)) + 1e-4 * (job.run.seed % 2)
        counts = {"steps": 1000, "syncs": [10], "bytes": [10], "curve": [[1, 0.8, 1]]}
        kinds = {"test_perplexity": 1 - score} if job.run.task == "wikitext-2" else {}
        return {"test_accuracy": score, "train_accuracy": score, **kinds, **counts}

    def factor(self, job: TrainJob) -> float:
        """The accuracy at the nearest of the rates."""
        factors = [(job.run.lr or 0.0) / rate for rate in self.rates]
        return min(factors, key=lambda factor: abs(math.log(factor)))

    def claims(self) -> list[Claim]:
        return [*self.study.page(self).claims]


def tuning_run(job: TrainJob) -> bool:
    return job.run.seed == SEED


@pytest.mark.parametrize("label", studies.studies())
def test_what_the_paper_tunes_is_tuned_where_that_was_asked_for(label: str) -> None:
    """No claim rests on a rate that is not tuned then, and none takes one that is before."""
    study = studies.studies()[label]
    plain, tuned = Peaked(study, SMALL), Peaked(study)
    resting = [one for one in plain.claims() if UNTUNED in one.reservation]
    assert bool(study.later(tuned)) == (entry(label).name in TUNED)
    assert not resting or study.later(tuned)
    assert not study.later(plain)
    assert not [one for one in plain.claims() if "rate x" in one.evidence]
    assert not [one for one in tuned.claims() if UNTUNED in one.evidence + one.reservation]


@pytest.mark.parametrize("name", sorted(TUNED))
def test_tables_and_claims_take_the_rates_that_were_found(name: str) -> None:
    """All that a page shows is among what was asked for."""
    study = studies.studies()[entry(name).label]
    records = Peaked(study)
    page = study.page(records)
    planned = {*study.jobs(records.scale), *study.later(records)}
    shown = {job for table in page.tables for row in table.jobs for job in row}
    assert any(records.factor(job) == pytest.approx(33 / 32, rel=1e-5) for job in shown)
    assert shown <= planned
    assert {job for one in page.claims for job in one.jobs} <= planned


@pytest.mark.parametrize("name", ["arms", "signs", "votes", "noise", "steps-to-accuracy"])
def test_while_a_grid_is_not_done_nothing_is_decided_by_it(name: str) -> None:
    """One arm may have its rate already, and the other not yet."""
    study = studies.studies()[entry(name).label]
    held = [one for one in Peaked(study, missing=tuning_run).claims() if UNTUNED in one.reservation]
    assert len(held) == {"arms": 2, "noise": 2}.get(name, 1)


def test_more_local_steps_take_over_the_rate_of_one() -> None:
    """H = 1 is best at 33/32 with signs and at 31/32 with error feedback, larger H elsewhere."""

    def best(job: TrainJob) -> float:
        if job.run.local_steps != (1,):
            return 2.0
        return {"sign": 33 / 32, "ef-sign": 31 / 32}[job.run.method]

    records = Peaked(signs.STUDY, best=best)
    found = {method: by for _, method, by in signs.rated(records)}
    for method, words in ("sign", "rate x 1.031"), ("ef-sign", "rate x 0.9688"):
        assert [*found[method]] == [1, 16, 32, 64]
        for h, one in found[method].items():
            assert one.tuned
            assert one.name == f"{method}, H = {h}, {words}"
            assert {*one.jobs} <= {*signs.later(records)}
    pictures = signs.page(records).pictures
    assert [one.name for one in pictures] == ["rates-1", "rates-2"]
    assert {job.run.local_steps for one in pictures for job in one.jobs} == {(1,)}
    unknown = Peaked(signs.STUDY, missing=tuning_run)
    assert [by for _, _, by in signs.rated(unknown)] == [by for _, _, by in signs.grid(SMALL)]


def test_the_mean_of_signs_is_one_arm_of_two_tables() -> None:
    """Its grid names it by the same job, so that it is trained once."""
    of_signs = tuning.point(signs.arms(SMALL, "fashion-mnist", "sign")[1], 1.0)
    study = studies.studies()["tab:understand_sign_sgd"]
    due = study.later(Peaked(study, missing=tuning_run))
    assert of_signs.key in [job.key for job in due]


def test_the_noise_that_was_chosen_is_tuned_and_no_other() -> None:
    records = Peaked(noise.STUDY, best=lambda job: 33 / 32 if job.run.noise != 5e-6 else 1.0)
    mini_batch, chosen = noise.starred(records)
    assert (mini_batch.name, chosen.run.noise) == ("mini-batch", 5e-6)
    assert {job.run.noise for job in noise.later(records)} == {0.0, 5e-6}
    incomplete = Peaked(noise.STUDY, missing=lambda job: job.run.noise == 1e-6)
    assert len(noise.starred(incomplete)) == 1
