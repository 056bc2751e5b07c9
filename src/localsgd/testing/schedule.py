"""What every schedule promises."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import product
from typing import Any

from localsgd.schedule.progress import Progress, Schedule, Sight, is_whole, reported_name, seen_by

STEPS = [0, 1, 2, 3, 4, 5, 9, 10, 11, 39, 40, 41, 79, 80, 10_000]

SIGHTS = [
    Progress(epoch=e, fraction=s, learning_rate=r, decayed=d, loss=x, waited_seconds=w)
    for (e, s, r), d, (x, w) in product(
        [(None, None, None), (1.5, 0.25, 0.1)], [False, True], [(None, 0.0), (2.0, 9.0)]
    )
]
"""What may be known at a step, or not."""

FIELDS: dict[Sight | str, tuple[str, ...]] = {
    "learning_rate": ("learning_rate", "decayed"),
    "first-decay": ("decayed",),
    "loss": ("loss",),
    "waited": ("waited_seconds", "seconds"),
}


def check_schedule(schedule: Schedule) -> None:
    """Asserts that `schedule` can decide when workers synchronise.

    It gives whole numbers from 1 up at every step, whatever is known; remembers nothing outside
    `Progress.memory`, which can be saved; and looks at nothing that it does not name in `sees`.
    """
    for check in CHECKS:
        check(schedule)


def at(step: int, sight: Progress) -> Progress:
    """The same progress with an empty memory of its own."""
    return replace(sight, step=step, memory={})


def _gives_whole_numbers_from_one_up(schedule: Schedule) -> None:
    for step, sight in product(STEPS, _known(schedule)):
        seen = at(step, sight)
        try:
            length = schedule(seen)
        except (TypeError, KeyError) as error:
            raise AssertionError(
                f"{schedule!r} fails for {seen}: {error}; what is None is not known yet, and a "
                "reported number that is not known is missing"
            ) from error
        assert is_whole(length, least=1), (
            f"{schedule!r} gives {length!r} for {seen}, no whole number from 1 up"
        )


def _remembers_nothing_outside_the_memory(schedule: Schedule) -> None:
    sights = [at(step, sight) for step, sight in product(STEPS, _known(schedule))]
    forwards = [schedule(sight) for sight in sights]
    backwards = [schedule(at(sight.step, sight)) for sight in reversed(sights)]
    assert forwards == backwards[::-1], (
        f"{schedule!r} gives another H when it is asked again with an empty memory: it remembers "
        "outside of Progress.memory, or draws at random"
    )


def _goes_on_from_a_saved_memory(schedule: Schedule) -> None:
    """A copy that is handed the memory half-way goes on like the one that wrote it."""
    sights = list(_course(set(), _names(schedule)))[::3]
    memory: dict[str, float] = {}
    whole = [schedule(replace(sight, memory=memory)) for sight in sights]
    for cut in (1, 7, 13):
        early: dict[str, float] = {}
        before = [schedule(replace(sight, memory=early)) for sight in sights[:cut]]
        kept, other = json.loads(json.dumps(early)), copy.deepcopy(schedule)
        after = [other(replace(sight, memory=kept)) for sight in sights[cut:]]
        assert before + after == whole, (
            f"{schedule!r} goes on differently when its memory is saved as JSON after {cut} rounds"
        )


def _looks_at_nothing_that_it_does_not_name(schedule: Schedule) -> None:
    for sight in _known(schedule):
        schedule(at(0, replace(sight, reported=_Named(schedule, sight.reported))))
    named = seen_by(schedule)
    allowed = {field for sight in named for field in FIELDS.get(sight, ())}
    usual = lengths(schedule, set())
    looked = _looked_at(schedule)
    for field in dict.fromkeys(itertools.chain.from_iterable(FIELDS.values())):
        if field not in allowed:
            unseen = field not in looked and lengths(schedule, {field}) == usual
            assert unseen, (
                f"{schedule!r} looks at {field}, which does not follow from what its sees = "
                f"{named} names, so that workers would not tell each other"
            )


def _looked_at(schedule: Schedule) -> set[str]:
    """The fields that it reads at some step, whatever comes of it.

    Where it copies or prints the whole progress, nothing can be told.
    """
    sights = {name for names in FIELDS.values() for name in names}
    looked: set[str] = set()
    found: set[str] = set()

    class Watched(Progress):
        def __getattribute__(self, name: str) -> Any:
            looked.add(name)
            return super().__getattribute__(name)

        def __repr__(self) -> str:
            return "Progress(...)"

    for step, sight in product(STEPS, _known(schedule)):
        given: dict[str, Any] = {one.name: getattr(sight, one.name) for one in fields(Progress)}
        given |= {"step": step, "memory": {}}
        seen = Watched(**given)
        looked.clear()
        schedule(seen)
        if not looked & {"__dict__", "__dataclass_fields__"}:
            found |= looked & sights
    return found


CHECKS = (
    _gives_whole_numbers_from_one_up,
    _remembers_nothing_outside_the_memory,
    _goes_on_from_a_saved_memory,
    _looks_at_nothing_that_it_does_not_name,
)


def lengths(schedule: Schedule, other: set[str]) -> list[int]:
    """H at each step of a run whose rate, loss and waiting fall; fields in `other` stay instead."""
    memory: dict[str, float] = {}
    return [schedule(replace(sight, memory=memory)) for sight in _course(other, _names(schedule))]


def _names(schedule: Schedule) -> set[str]:
    """The names of the numbers that are to be reported for it."""
    return {name for sight in seen_by(schedule) if (name := reported_name(sight))}


def _known(schedule: Schedule) -> list[Progress]:
    """`SIGHTS`, without numbers that are reported and with those of the schedule."""
    numbers = dict.fromkeys(_names(schedule), 2.0)
    return SIGHTS + ([replace(sight, reported=numbers) for sight in SIGHTS] if numbers else [])


class _Named(Mapping[str, float]):
    """Reported numbers, of which none but those that a schedule names may be looked at."""

    def __init__(self, schedule: Schedule, numbers: Mapping[str, float]) -> None:
        self._schedule = schedule
        self._numbers = numbers

    def __getitem__(self, name: str) -> float:
        named = _names(self._schedule)
        assert name in named, (
            f"{self._schedule!r} looks at reported[{name!r}], and its sees = "
            f"{seen_by(self._schedule)} doesn't name reported:{name}, so that workers would not "
            "tell each other"
        )
        return self._numbers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def _course(other: set[str], reported: set[str]) -> Iterator[Progress]:
    for step in range(80):
        fall, slow = 0.9**step, 0.99**step
        seen: dict[str, Any] = {
            "learning_rate": 0.3 * (slow if "learning_rate" in other else fall),
            "decayed": fall < 0.5 and "decayed" not in other,
            "loss": 2 * (slow if "loss" in other else fall) ** 2,
            "seconds": (1.0 if "seconds" in other else 2.0) * step,
            "waited_seconds": step * (slow if "waited_seconds" in other else fall),
            "reported": dict.fromkeys(reported, 2 * fall),
        }
        yield Progress(step, **seen)
