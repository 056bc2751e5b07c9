"""Errors that tell a user what was given, why it cannot work and what would."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

DIVERGED_EXIT = 4
"""Exit status of a command whose run has diverged."""


MOST_SHOWN = 80
"""Most characters of a value in a message."""


def short(value: Any) -> str:
    """A value for a message, in one line: as Python shows it, or its type where that is long."""
    if isinstance(value, str):
        value = value if len(value) <= MOST_SHOWN else f"{value[:MOST_SHOWN]}..."
        return repr(value)
    try:
        shown = repr(value)
    except Exception:  # of someone else's class
        shown = ""
    if shown and len(shown) <= MOST_SHOWN and shown.isprintable():
        return shown
    return f"a value of type {type(value).__name__}"


class UserError(ValueError):
    """A user's mistake.

    Its text is one line; the command line prints it and exits with 2.
    """


class Diverged(UserError):
    """The numbers of a run have stopped being finite.

    Its text is one line; the command line prints it and exits with 4.
    """


class PeerLost(RuntimeError):
    """Another process of the run died or stopped making progress."""


def unknown_name(kind: str, given: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not among the `known`; the nearest is named if one is near."""
    names = list(known)
    near = "".join(f"nearest: {name}. " for name in difflib.get_close_matches(given, names, n=1))
    there = f"There are {', '.join(names)}" if near else f"there are {', '.join(names)}"
    return UserError(f"unknown {kind} {given!r}; {near}{there}")
