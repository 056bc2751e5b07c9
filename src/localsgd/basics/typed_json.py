"""Reads JSON whose values have a declared type."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from localsgd.basics.files import read_text
from localsgd.basics.refused import explained
from localsgd.errors import UserError

T = TypeVar("T")


def read_json(path: Path, kind: type[T], advice: str) -> T:
    """The value of a kind, as msgspec knows them, that a file has as JSON.

    Args:
        path: of the file.
        kind: of the value.
        advice: for its user, at the end of the message.

    Raises:
        UserError: it has none, or is no regular file.
        OSError: it cannot be opened or read.
    """
    try:
        return msgspec.json.decode(read_text(path), type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        reason = ": ".join(filter(None, explained(error, kind)))
        raise UserError(f"{path} is damaged: {reason}; {advice}") from None


def check_value(found: Any, kind: Any, where: str, name: str = "", then: str = "") -> None:
    """Raises for a value of a file that is not of a kind.

    Args:
        found: the value, as JSON gives it.
        kind: a type, as msgspec knows them.
        where: its file, and the line of it.
        name: of the value; not given if it is the whole file, or line.
        then: what to do about it.
    """
    try:
        msgspec.convert(found, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        place, reason = explained(error, kind)
        named = ".".join(filter(None, (name, place)))
        what = f"{f'{named}: ' * bool(named)}{reason}{f'; {then}' * bool(then)}"
        raise UserError(f"{where} is damaged: {what}") from None
