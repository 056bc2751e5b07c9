"""The order in which runs of one folder are shown: by their settings, numbers by their size."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import msgspec

from localsgd.train.config.run import Run

Key: TypeAlias = tuple[Any, ...]
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


def by_settings(run: Run) -> Key:
    """A key that sorts runs by their settings, and seeds of one configuration last."""
    settings = msgspec.structs.asdict(run)
    return (*(of_value(value) for name, value in settings.items() if name != "seed"), run.seed)


def of_value(value: Any) -> Key:
    """A key of a setting's value: none, numbers, numbers by level, text.

    >>> sorted([(16,), (1,), (4,)], key=of_value), sorted(["16x2", "4x2", "4x16"], key=of_value)
    ([(1,), (4,), (16,)], ['4x2', '4x16', '16x2'])
    """
    if value is None:
        return (0,)
    if isinstance(value, int | float):
        return 1, value
    if isinstance(value, str):
        parts = _NUMBER.split(value)  # text and numbers in turns
        return 3, *((float(part) if odd % 2 else part) for odd, part in enumerate(parts))
    return 2, *map(of_value, value)
