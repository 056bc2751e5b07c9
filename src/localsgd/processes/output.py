"""Standard output for the program's own words."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def own_output() -> Generator[None]:
    """What libraries write to standard output goes to standard error inside, unlike `sys.stdout`.

    Gloo of torch 2.9 tells of each group's connections there, NCCL of its version, in the middle of
    a table that another program may read. Where `sys.stdout` is no file, nothing is changed.
    """
    before = sys.stdout
    if not _is_standard(before):
        yield
        return
    before.flush()
    kept = os.dup(1)
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
