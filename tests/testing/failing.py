"""A check that finds what it is for."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def fails(check: Callable[[], None], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check()
