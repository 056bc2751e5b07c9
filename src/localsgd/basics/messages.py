"""Reads messages of other processes: none is trusted to have the form that this version sends.

Only what a message has to be is made of it, such as a tuple of a text and a list of whole numbers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from localsgd.basics.printable import printable
from localsgd.basics.units import WHOLE
from localsgd.errors import UserError, short

MOST = 1 << 26
"""Most bytes of a message; those of this package are far smaller."""


def read_message(sent: bytes | str, kind: Any, sender: str) -> Any:
    """The value of a message in JSON.

    Examples:
        >>> read_message("[3, null]", tuple[int, str | None], "rank 1")
        (3, None)

    Args:
        sent: the message.
        kind: its type: `str`, `bool`, `float`, an `int` of 64 bits, a `StrEnum`, `... | None`, a
            list, a tuple, a dict with names, a named tuple or a dataclass of such.
        sender: who has sent it, for the error.

    Raises:
        UserError: it is no such value.
    """
    try:
        if len(sent) > MOST:
            raise ValueError(f"it has more than {MOST:,} bytes")
        return _checked(kind, json.loads(sent))
    except (ValueError, RecursionError) as error:
        reason = one_line(str(error)) if isinstance(error, ValueError) else "its nesting is deep"
        raise UserError(
            f"{sender} has sent what this version of localsgd does not understand ({reason}); "
            "start all ranks with the same version"
        ) from None


def read_messages(sent: Sequence[bytes | str], kind: Any) -> list[Any]:
    """The values of the messages of all ranks, by rank."""
    return [read_message(one, kind, f"rank {rank}") for rank, one in enumerate(sent)]


def one_line(text: bytes | str) -> str:
    """A text of another process in one line, in which nothing steers a terminal.

    Examples:
        >>> one_line(b"gone\\n\\x1b[2J\\xff")
        'gone ?[2J?'
    """
    said = text if isinstance(text, str) else text.decode(errors="replace").replace("\ufffd", "?")
    return printable(" ".join(said.splitlines()))


def _checked(kind: Any, value: Any) -> Any:
    """`value`, which JSON gave, as a `kind`."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if value is None else _checked(parts[0], value)
    if origin in (list, Sequence) and type(value) is list:
        return [_checked(parts[0], one) for one in value]
    if origin is dict and type(value) is dict:
        return {name: _checked(parts[1], one) for name, one in value.items()}
    if origin is tuple and type(value) is list and len(value) == len(parts):
        return tuple(map(_checked, parts, value))
    if origin is None and _is_plain(kind, value):
        return value
    if isinstance(kind, type) and issubclass(kind, StrEnum) and value in list(kind):
        return kind(value)
    if fields := _fields(kind):
        if is_dataclass(kind) and type(value) is dict and value.keys() == fields.keys():
            return kind(**{name: _checked(of, value[name]) for name, of in fields.items()})
        if not is_dataclass(kind) and type(value) is list and len(value) == len(fields):
            return kind(*map(_checked, fields.values(), value))
    raise ValueError(f"{short(value)} is no {getattr(kind, '__name__', kind)}")


def _is_plain(kind: type, value: object) -> bool:
    """Whether a value is a text, a number or none, as `kind` asks."""
    if kind in (int, float) and type(value) is int:
        return abs(value) < WHOLE
    return kind in (str, bool, float, NoneType) and type(value) is kind


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """The types of the fields of a named tuple or a dataclass."""
    return get_type_hints(kind) if hasattr(kind, "_fields") or is_dataclass(kind) else {}
