"""Standard output for the program's own words."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def own_output(*, drop: bool = False) -> Generator[None]:
    """What libraries write to standard output goes to standard error inside, unlike `sys.stdout`.

    NCCL tells of its version there, in the middle of a table that another program may read. Where
    `sys.stdout` is no file, nothing is changed.

    Args:
        drop: it goes nowhere. For gloo of torch 2.9, in which every process tells of every group's
            connections, several at once into one another's lines.
    """
    before = sys.stdout
    if not _is_standard(before):
        yield
        return
    before.flush()
    kept = os.dup(1)
    if drop:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
    else:
        os.dup2(2, 1)
    sys.stdout = os.fdopen(
        os.dup(kept),
        "w",
        buffering=1 if before.line_buffering else -1,
        encoding=before.encoding,
        errors=before.errors,
    )
    try:
        yield
    finally:
        sys.stdout.close()
        sys.stdout = before
        os.dup2(kept, 1)
        os.close(kept)


def _is_standard(stream: object) -> bool:
    try:
        return stream.fileno() == 1  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
