"""Files from elsewhere: what has no end, or is no file at all, is refused before it is read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from localsgd.errors import UserError

MOST = 1 << 28
"""Bytes of a text that is read at once: the largest files of a run's folder are far below."""


def check_regular(path: Path) -> None:
    """Refuses a pipe, a device or a socket, whose reading may wait for ever or never end.

    What is not there is left to who opens it.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path} is no file but a pipe or a device; put a file there")


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
