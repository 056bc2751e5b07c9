"""Standard output that only the program itself writes to, and that survives losing its reader."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def own_output(*, drop: bool = False) -> Generator[None]:
    """Sends what C libraries write to standard output to standard error; `sys.stdout` stays.

    NCCL prints its version there, in the middle of a table that another program may read. If
    `sys.stdout` is no file, nothing is changed.

    Args:
        drop: discard it instead. For gloo of torch 2.9, in which every process reports every
            group's connections.
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
    sys.stdout = lasting(before, os.dup(kept))
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


class _Lasting(io.FileIO):
    """A file that discards what is written once its reader has gone."""

    def write(self, data: bytes) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def lasting(like: TextIO, descriptor: int | None = None) -> TextIO:
    """A stream like `like` that discards what is written once its reader has gone.

    Args:
        like: a standard stream; it is returned as it is if it is no text stream or has no file.
        descriptor: the file to write to, closed with the stream; if not given, the file of `like`,
            which stays open.
    """
    if not isinstance(like, io.TextIOWrapper):
        return like
    own = descriptor is not None
    try:
        file = _Lasting(descriptor if own else like.fileno(), "w", closefd=own)
    except io.UnsupportedOperation:
        like.reconfigure(errors="replace")
        return like
    return io.TextIOWrapper(
        io.BufferedWriter(file),  # type: ignore[bad-specialization]
        encoding=like.encoding,
        errors="replace",  # a character that the terminal lacks becomes `?`
        line_buffering=like.line_buffering,
    )
