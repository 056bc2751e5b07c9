"""The idx format of MNIST and its kin: a big-endian header, then bytes; plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from localsgd.errors import UserError

_UINT8 = 0x08


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The uint8 array of `shape` in `path`.

    Raises:
        UserError: unreadable, or anything but exactly such an array; names the file.
    """
    header = struct.pack(f">HBB{len(shape)}I", 0, _UINT8, len(shape), *shape)
    size = len(header) + math.prod(shape)
    wanted = f"expected an idx file of {' x '.join(map(str, shape))} bytes"
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(size + 1)  # no more, whatever the file claims to unpack to
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error}); {wanted}") from None
    if content[: len(header)] != header:
        found = content[: len(header)].hex(" ", 4)
        raise UserError(f"{path} is damaged or foreign: {wanted}, but it begins with {found}")
    if len(content) != size:
        more = "more" if len(content) > size else f"{len(content) - len(header):,}"
        raise UserError(f"{path} is damaged: {wanted}, found {more}")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape).copy()
