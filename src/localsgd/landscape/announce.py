"""Progress of long evaluations: a function that is called with (what, done, total)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO, TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """Prints nothing (the default)."""


def labelled(progress: Progress, label: str) -> Progress:
    """The same progress, with a label in front."""
    return lambda what, done, total: progress(f"{label}: {what}", done, total)


def on_stderr(every_seconds: float = 5.0, stream: TextIO | None = None) -> Progress:
    """A progress that prints a line at limited intervals, and at the end of each part."""
    last = -float("inf")

    def tell(what: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= every_seconds or done >= total:
            last = now
            print(f"{what}: {done} of {total}", file=stream or sys.stderr, flush=True)

    return tell
