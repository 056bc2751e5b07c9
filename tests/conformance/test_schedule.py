"""What every schedule promises. Whoever adds one adds a line to `SCHEDULES`."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import localsgd
from localsgd.schedule.adaptive import cyclic, decreasing, qsr
from localsgd.schedule.fixed import every, piecewise, post_local, warmup
from localsgd.schedule.progress import Progress, seen_by
from localsgd.testing.schedule import CHECKS, SIGHTS, STEPS, at

SCHEDULES: list[Any] = [
    every(1),
    every(7),
    post_local(16),
    post_local(4, after=10),
    post_local(4, after=0),
    warmup(16, 40),
    warmup(6, 10, "exponential"),
    warmup(8, 0, "constant"),
    piecewise({0: 1, 5: 4, 80: 16}),
    qsr(4, 0.5),
    qsr(2, 0.5, warmup=10),
    decreasing(16, 5),
    cyclic(6, period=20, first=8),
    localsgd.adacomm(16, 5),
    localsgd.adacomm(16, 5, with_rate=True),
    localsgd.plateau(8, 5),
    localsgd.waiting_below(0.1),
]

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)


@every_schedule
def test_is_a_frozen_value(schedule: Any) -> None:
    name = dataclasses.fields(schedule)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(schedule, name, 3)


@every_schedule
def test_compares_by_value_and_survives_a_copy(schedule: Any) -> None:
    for other in (copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert other is not schedule
        assert other == schedule
        assert hash(other) == hash(schedule)
        assert repr(other) == repr(schedule)
    assert [other for other in SCHEDULES if other == schedule] == [schedule]


@every_schedule
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(schedule: Any, check: Callable[[Any], None]) -> None:
    check(schedule)


@every_schedule
def test_sees_says_what_is_so(schedule: Any) -> None:
    others_matter = any(len({schedule(at(step, sight)) for sight in SIGHTS}) > 1 for step in STEPS)
    others_matter |= lengths_where(schedule, 0.9) != lengths_where(schedule, 1.0)
    assert bool(seen_by(schedule)) is others_matter


def lengths_where(schedule: Any, falling: float) -> list[int]:
    """H in a run in which rate, loss and the time spent waiting fall like this."""
    memory: dict[str, float] = {}
    return [
        schedule(
            Progress(
                step,
                learning_rate=0.3 * falling**step,
                loss=2 * falling ** (2 * step),
                seconds=2.0 * step,
                waited_seconds=step * falling**step,
                memory=memory,
            )
        )
        for step in range(80)
    ]
