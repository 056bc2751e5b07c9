"""Reads files from elsewhere; those that are endless or no regular files are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from localsgd.errors import UserError

MOST = 1 << 28
"""Most bytes of a text that is read; the largest files of a run's folder are far smaller."""


def check_regular(path: Path) -> None:
    """Raises for a pipe, a device or a socket, which might be read for ever.

    A missing file is no error here; opening it raises one.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path} is a pipe or a device; put a regular file there")


def read_text(path: Path, most: int = MOST) -> str:
    """The text of a regular file in UTF-8.

    Raises:
        UserError: it is a pipe or a device, larger than `most` bytes, or no text.
        OSError: it cannot be opened or read.
    """
    check_regular(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1)
    if len(content) > most:
        raise UserError(f"{path} has {size:,} bytes, which is more than the {most:,} it may have")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text: {error.reason} at byte {error.start}") from None
