"""What every schedule promises. Whoever adds one adds a line to `SCHEDULES`."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from itertools import product
from typing import Any

import pytest

from localsgd.schedule import Progress, every, piecewise, post_local, warmup

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
]

STEPS = [0, 1, 2, 3, 4, 5, 9, 10, 11, 39, 40, 41, 79, 80, 10_000]

OTHER_SIGHTS = [
    dataclasses.replace(
        Progress(), epoch=e, share=s, learning_rate=r, decayed=d, loss=x, waited_seconds=w
    )
    for (e, s, r), d, (x, w) in product(
        [(None, None, None), (1.5, 0.25, 0.1)], [False, True], [(None, 0.0), (2.0, 9.0)]
    )
]


def at(step: int, sight: Progress) -> Progress:
    return dataclasses.replace(sight, step=step)


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
def test_step_only_says_what_is_so(schedule: Any) -> None:
    others_matter = any(
        len({schedule(at(step, sight)) for sight in OTHER_SIGHTS}) > 1 for step in STEPS
    )
    assert schedule.step_only is not others_matter
