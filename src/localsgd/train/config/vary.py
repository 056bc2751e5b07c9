"""Runs that differ in a few settings, as `--vary` writes them.

local_steps=1,4,16 lr=0.1,0.2         a grid: every H with every rate, six runs
local_steps/lr=1/0.1,16/0.2           a list: H = 1 with 0.1, and H = 16 with 0.2
"local_steps=2 8,4 4"                 numbers by level, as the command line takes them
"inner_state=a=reset,b=reset;"        values with commas in them are separated by ;
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import msgspec

from localsgd.basics.refused import explained
from localsgd.errors import UserError, unknown_name
from localsgd.train.config.parts import OUTSIDE, compression_names, outer_names
from localsgd.train.config.run import Run, checked

NAMES = tuple(name for name in Run.__struct_fields__ if name != "seed")
PARTS = {"compression": compression_names, "outer": outer_names}
"""By setting, the names that it may have, those of other packages included."""
_TYPES = get_type_hints(Run, include_extras=True)
_EXAMPLE = "write --vary local_steps=1,4,16 lr=0.1,0.2"


@dataclass(frozen=True)
class Point:
    """One choice of the varied settings.

    Args:
        values: by name of a setting, in the order in which they were written.
        words: the same as they were written.
    """

    values: Mapping[str, Any]
    words: Mapping[str, str]

    @property
    def name(self) -> str:
        return ",".join(f"{name}={word}" for name, word in self.words.items())

    def of(self, run: Run) -> Run:
        """`run` with these values.

        Raises:
            UserError: a value is out of range; the text names the point.
        """
        apart = {"workers": "topology", "topology": "workers"}  # either says what the other is
        opened = {apart[name]: None for name in self.values if name in apart}
        try:
            return checked(msgspec.structs.replace(run, **{**opened, **self.values}))
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None


def points(axes: Sequence[str]) -> list[Point]:
    """All combinations of the axes' values, the last axis changing fastest.

    >>> [point.name for point in points(["local_steps=1,4", "lr=0.1"])]
    ['local_steps=1,lr=0.1', 'local_steps=4,lr=0.1']

    Raises:
        UserError: an unknown or repeated setting, a value that it can't have, or one given twice.
    """
    parsed = [_axis(axis) for axis in axes]
    for name, word in (pair for axis in parsed for one in axis for pair in one.values.items()):
        if name in PARTS and word is not None and word not in PARTS[name]():
            raise OUTSIDE[name].unknown(word)
    names = [name for axis in parsed for name in axis[0].words]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--vary names {name} twice; put all its values behind one {name}=")
    found = [
        Point(
            {name: value for part in parts for name, value in part.values.items()},
            {name: word for part in parts for name, word in part.words.items()},
        )
        for parts in itertools.product(*parsed)
    ]
    for name, times in Counter(point.name for point in found).items():
        if times > 1:
            raise UserError(f"--vary gives {name} {times} times; give each value once")
    return found


def _axis(text: str) -> list[Point]:
    """The values of one word of `--vary`, of a single setting or of several joined by `/`."""
    left, is_there, right = text.partition("=")
    words = [word.strip() for word in right.split(";" if ";" in right else ",")]
    words = words[:-1] if words[-1] == "" and ";" in right else words
    if not is_there or not all(words):
        raise UserError(f"--vary {text!r} is not understood; {_EXAMPLE}")
    names = left.split("/")
    return [point(dict(zip(names, _parts(word, names, text), strict=True))) for word in words]


def _parts(word: str, names: Sequence[str], text: str) -> list[str]:
    parts = word.split("/") if len(names) > 1 else [word]
    if len(parts) != len(names):
        raise UserError(
            f"--vary {text!r}: {word} has {len(parts)} of {len(names)} values; write "
            f"{'/'.join(names)}={'/'.join('...' for _ in names)},..."
        )
    return parts


def point(words: Mapping[str, str]) -> Point:
    """The point with these settings.

    Raises:
        UserError: as `points`.
    """
    return Point({name: value_of(name, word) for name, word in words.items()}, dict(words))


def value_of(name: str, word: str) -> Any:
    """The value of a setting as it is written on the command line.

    >>> value_of("local_steps", "2 8"), value_of("lr", "None"), value_of("compression", "none")
    ((2, 8), None, 'none')
    """
    if name == "seed":
        raise UserError("seeds are given by --seeds 0..4, so that differences can be paired")
    if "." in name:
        raise UserError(
            f"{name} is no setting; if it is an option of a part, write options={name}={word},..."
        )
    if name not in NAMES:
        raise unknown_name("setting", name, NAMES)
    if word == "None" and type(None) in get_args(_TYPES[name]):
        return None
    try:
        return msgspec.convert(word, _TYPES[name], strict=False)
    except msgspec.ValidationError as error:
        refused = error
    try:
        return msgspec.convert(word.split(), _TYPES[name], strict=False)
    except msgspec.ValidationError as error:
        if "got `array`" not in str(error):
            refused = error
    raise UserError(f"--vary {name}={word}: {explained(refused, _TYPES[name])[1]}")


def word_of(value: Any) -> str:
    """A setting's value as it is written.

    >>> word_of((2, 8)), word_of(0.1), word_of(None)
    ('2 8', '0.1', 'None')
    """
    return " ".join(map(word_of, value)) if isinstance(value, tuple) else str(value)


def seeds_of(words: Sequence[str]) -> tuple[int, ...]:
    """Seeds as they are written: `0..4`, `0 1 2` or `0,1,2`.

    >>> seeds_of(["0..2", "7"])
    (0, 1, 2, 7)
    """
    found: list[int] = []
    for word in ",".join(words).split(","):
        first, is_range, last = word.strip().partition("..")
        try:
            low, high = int(first), int(last if is_range else first)
        except ValueError:
            low, high = 0, -1
        if not low <= high < low + 10_000:
            raise UserError(f"--seeds {word!r} is not understood; write 0..4 or 0 1 2")
        found += range(low, high + 1)
    if len({*found}) < len(found):
        raise UserError(f"--seeds {' '.join(words)} names a seed twice")
    return tuple(found)
