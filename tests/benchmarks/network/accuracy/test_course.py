"""Real workers on real links, with noise for images: the arms are alike in all but their links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.progress import Progress

from benchmarks.network.accuracy import trainee
from benchmarks.network.accuracy.arms import BOUND, DDP, PACE, POST_LOCAL, TRAINED, TWO_PHASE
from benchmarks.network.accuracy.course import Course
from benchmarks.network.accuracy.store import Store
from benchmarks.network.crew import Crew
from benchmarks.network.laboratory import Laboratory
from benchmarks.workloads import random_cifar
from tests.benchmarks.network.accuracy.cases import SMALL

RATE = 1_000_000_000

pytestmark = pytest.mark.timeout(90)


def use_noise() -> None:
    """In a process of the crew: no data is needed."""
    trainee._task = random_cifar  # type: ignore[assignment]


def weights(arm: str) -> list[torch.Tensor]:
    module = trainee._trainees[arm]._module
    return [parameter.detach().clone() for parameter in module.parameters()]


@pytest.fixture
def noisy(crew: Crew, racks: Laboratory) -> Iterator[Crew]:
    crew.call(use_noise)
    yield crew
    crew.call(trainee.leave)
    racks.shape(None, None)


def _differ(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


def test_arms_of_a_seed_start_and_go_on_alike(noisy: Crew) -> None:
    found = {}
    for arm in (DDP, POST_LOCAL, TWO_PHASE, BOUND):
        noisy.call(trainee.begin, arm, SMALL, 3)
        start = noisy.call(weights, arm)
        noisy.call(trainee.advance, arm, SMALL.switch)
        found[arm] = noisy.call(weights, arm)
        assert all(_differ(one, start[0]) == 0 for one in start)
    first, ddp = found[POST_LOCAL], found[DDP]
    # The first phase is mini-batch SGD: DDP's, to rounding, from the same samples at the same γ.
    assert _differ(ddp[0], start[0]) > 0
    assert _differ(first[0], ddp[0]) < 1e-5
    assert _differ(found[BOUND][0], ddp[0]) > 1e-5
    assert _differ(found[TWO_PHASE][0], found[TWO_PHASE][1]) == 0
    assert _differ(found[BOUND][0], found[BOUND][1]) > 1e-5


@pytest.mark.parametrize("every", [1, 2])
def test_all_arms_are_trained_once_and_what_is_kept_is_left(
    every: int, noisy: Crew, racks: Laboratory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(SMALL, judged_every=every)
    store, progress = Store(folder / "runs.jsonl", small), Progress(disable=True)
    course = Course(racks, noisy, small, store, progress)
    course.train(RATE, [2], TRAINED)
    runs = store.all(kind="run", rate=RATE, seed=2)
    assert [one["arm"] for one in runs] == list(TRAINED)
    times = SMALL.epochs // every
    assert all(len(one["seconds"]) == len(one["right"]) == times for one in runs)
    assert all(0 <= one["right"][-1] <= one["right_last"] <= SMALL.judged_last for one in runs)
    sent = {one["arm"]: sum(one["node_bytes"]) for one in runs}
    assert sent["local"] < 0.7 * sent[DDP]
    assert sent[TWO_PHASE] < 0.1 * sent[DDP]
    (laps,) = store.all(kind="laps")
    assert set(laps["step_seconds"]) == set(PACE)
    monkeypatch.delattr(noisy, "_connections")  # Nobody is called again.
    Course(racks, noisy, small, Store(folder / "runs.jsonl", small), progress).train(
        RATE, [2], TRAINED
    )
