"""Unknown names, answered with the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from localsgd.errors import UserError


def unknown(kind: str, given: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not among the `known`."""
    names = list(known)
    nearest = difflib.get_close_matches(given, names, n=1, cutoff=0.0)
    return UserError(
        f"unknown {kind} {given!r}; nearest: {nearest[0]}. There are {', '.join(names)}"
    )
