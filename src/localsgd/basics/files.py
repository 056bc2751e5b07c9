"""Reads files from elsewhere, and writes beside them.

Those that are endless, no regular files or damaged are refused. Nothing is written through a link:
a folder from someone else may have one to any file of its reader.
"""

from __future__ import annotations

import os
import pickle
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from localsgd.basics.refused import explained
from localsgd.errors import PeerLost, UserError

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


def size_of_own(path: Path) -> int:
    """The bytes of a file that lies in its folder itself, and not elsewhere by a link.

    Raises:
        UserError: it is a link, a pipe, a device or a folder.
        OSError: there is none.
    """
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path} is no regular file; put the file itself there")
    return found.st_size


def check_no_link(path: Path) -> None:
    """Raises for a symbolic link, through which something else would be written or removed."""
    if path.is_symlink():
        raise UserError(f"{path} is a link; remove it, or put what it stands for there itself")


def open_anew(path: Path) -> IO[bytes]:
    """Makes a file to write to, in place of a file or a link that is there."""
    path.unlink(missing_ok=True)
    return path.open("xb")  # never follows a link


def open_to_add(path: Path) -> IO[bytes]:
    """Opens a file to add to it or to lock it; it is made if it isn't there, and never cut.

    Raises:
        UserError: it is a link, a pipe or a device.
        OSError: it cannot be opened.
    """
    check_no_link(path)
    check_regular(path)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.fdopen(os.open(path, flags, 0o666), "ab")


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


def expanded(path: Path | str) -> Path:
    """`path` with the home folder in place of a leading `~`.

    Raises:
        UserError: there is no such home, or it can be no path.
    """
    if "\0" in str(path):
        raise UserError(f"{str(path)!r} is no path, since it has a zero character; give another")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path} names a home that is not there; give the path in full") from None


_DAMAGE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
)


def is_address(place: str | os.PathLike[str]) -> bool:
    """Whether a place is an address such as `s3://bucket/run`, not a file's; as a `Path` too.

    >>> [is_address(one) for one in ("s3://bucket", Path("cache::gs://bucket/run"), "/a/b://c")]
    [True, True, False]
    """
    pattern = r"([A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+:/"
    return re.match(pattern, os.fspath(place)) is not None


@contextmanager
def as_saved(path: Path | str, advice: str) -> Generator[None]:
    """Refuses saved state that is cut off, or whose parts are not of the kinds that were saved.

    Args:
        path: of the state, or words for it.
        advice: for its user, at the end of the message.
    """
    try:
        yield
    except (UserError, PeerLost):
        raise
    except _DAMAGE as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            raise UserError(
                f"{path} does not fit into memory, or is damaged; free some memory before anything "
                "is removed"
            ) from error
        raise UserError(
            f"{path} is damaged, or of another version: {_reason(error)}; {advice}"
        ) from error


def _reason(error: Exception) -> str:
    """Why saved state is refused, in one line."""
    if isinstance(error, pickle.UnpicklingError):  # PyTorch's own words advise to trust the file
        return "it holds what is no tensor, number or text"
    if isinstance(error, EOFError):
        return "it ends too early"
    if type(error).__name__ == "ValidationError":  # of msgspec, which not every user has
        return ": ".join(filter(None, explained(error)))
    said = next(iter(str(error).splitlines()), "")
    plain = isinstance(error, OSError | RuntimeError) or type(error) is ValueError
    return said if plain and said else f"{type(error).__name__}: {said}"
