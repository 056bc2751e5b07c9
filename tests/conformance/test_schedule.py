"""What every schedule promises. Whoever adds one adds a line to `SCHEDULES`."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from itertools import product
from typing import Any

import pytest

import localsgd
from localsgd.schedule.adaptive import cyclic, decreasing, qsr
from localsgd.schedule.fixed import every, piecewise, post_local, warmup
from localsgd.schedule.progress import Progress, seen_by

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

STEPS = [0, 1, 2, 3, 4, 5, 9, 10, 11, 39, 40, 41, 79, 80, 10_000]

OTHER_SIGHTS = [
    dataclasses.replace(
        Progress(), epoch=e, fraction=s, learning_rate=r, decayed=d, loss=x, waited_seconds=w
    )
    for (e, s, r), d, (x, w) in product(
        [(None, None, None), (1.5, 0.25, 0.1)], [False, True], [(None, 0.0), (2.0, 9.0)]
    )
]


def at(step: int, sight: Progress) -> Progress:
    """With a memory of its own, and empty."""
    return dataclasses.replace(sight, step=step, memory={})


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
def test_gives_plain_whole_numbers_from_one_up(schedule: Any) -> None:
    for step, sight in product(STEPS, OTHER_SIGHTS):
        length = schedule(at(step, sight))
        assert type(length) is int
        assert length >= 1


@every_schedule
def test_remembers_nothing(schedule: Any) -> None:
    sights = [at(step, sight) for step, sight in product(STEPS, OTHER_SIGHTS)]
    forwards = [schedule(sight) for sight in sights]
    backwards = [schedule(sight) for sight in reversed(sights)]
    assert forwards == backwards[::-1]


@every_schedule
def test_sees_says_what_is_so(schedule: Any) -> None:
    others_matter = any(
        len({schedule(at(step, sight)) for sight in OTHER_SIGHTS}) > 1 for step in STEPS
    )
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


@every_schedule
def test_what_it_remembers_is_all_in_the_memory_and_can_be_kept_as_json(schedule: Any) -> None:
    """A copy that is handed the memory half-way goes on like the one that wrote it."""
    sights = [
        Progress(
            step,
            learning_rate=0.1 * 0.9**step,
            loss=3 * 0.9**step,
            waited_seconds=0.7 * step,
            seconds=1.0 * step,
        )
        for step in range(0, 60, 3)
    ]
    memory: dict[str, float] = {}
    whole = [schedule(dataclasses.replace(sight, memory=memory)) for sight in sights]
    for cut in (1, 7, 13):
        early: dict[str, float] = {}
        before = [schedule(dataclasses.replace(s, memory=early)) for s in sights[:cut]]
        kept, other = json.loads(json.dumps(early)), copy.deepcopy(schedule)
        after = [other(dataclasses.replace(s, memory=kept)) for s in sights[cut:]]
        assert before + after == whole
