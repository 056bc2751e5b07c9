"""LIBSVM's text format: a label and ascending `index:value` pairs from 1, an example a line.

Plain, bz2 and gz files are told apart by their first bytes, not by their names. Blank lines and
what follows a `#` are skipped. Values that are not finite, labels of one class or of three, an
index of 0 and indices that don't ascend are refused with file and line, as they are signs of
another format.

Source: C.-C. Chang and C.-J. Lin, LIBSVM: a library for support vector machines, 2011 (README,
    "`svm-train` usage").
"""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from localsgd.basics.files import check_regular
from localsgd.basics.units import decimal_number, whole_number
from localsgd.errors import UserError
from localsgd.train.data.tasks.data_folders import advice, data_folders

_OPENERS = {b"BZh": bz2.open, b"\x1f\x8b": gzip.open}
_PAIR = 'a pair "index:value" such as 3:0.5'
_MOST = 2**31 - 1
"""The largest index; LIBSVM's own has 32 bits."""


@dataclass(frozen=True, eq=False)
class Examples:
    """What a file holds.

    Args:
        rows: [n, d].
        positive: [n], whether a row has the larger of the two labels.
        labels: the smaller and the larger label.
    """

    rows: csr_array
    positive: NDArray[np.bool_]
    labels: tuple[float, float]


def find(name: str, data_dir: Path | None = None) -> Path:
    """The file of data set `name` (plain, .bz2, .gz) in `libsvm/` of a data folder, or in it."""
    for place in data_folders(data_dir):
        for folder in (place / "libsvm", place):
            for ending in ("", ".bz2", ".gz"):
                path = folder / f"{name}{ending}"
                if path.is_file():
                    return path
    raise UserError(f"no data set {name!r}: {advice(f'libsvm/{name}.bz2', data_dir)}")


def read(path: Path, *, features: int | None = None) -> Examples:
    """All examples of a file.

    Args:
        path: plain, bz2 or gz.
        features: d, where a file doesn't show it, as a test set that lacks the last feature; the
            largest index otherwise.

    Raises:
        UserError: a line that can't be read, labels that are not two classes, no example, an index
            above `features`.
    """
    labels: list[float] = []
    indices: list[int] = []
    values: list[float] = []
    starts = [0]
    for number, line in _lines(path):
        label, *pairs = line.split()
        where = f"{path}:{number}"
        labels.append(_number(label, where, "a label such as +1 first"))
        before = len(indices)
        for pair in pairs:
            index, colon, value = pair.partition(":")
            if not colon:
                raise UserError(f"{where}: expected {_PAIR}, got {pair[:40]!r}")
            indices.append(_index(index, where, pair))
            values.append(_number(value, where, _PAIR, pair))
        _check_order(indices[before:], where, features)
        starts.append(len(indices))
    if not labels:
        raise UserError(f"{path} has no example; expected lines such as +1 3:1 11:1")
    width = features or max(indices, default=0)
    # 32-bit indices, which SciPy keeps: half the memory to go through.
    parts = (np.array(values), np.array(indices, np.int32) - 1, np.array(starts, np.int32))
    rows = csr_array(parts, shape=(len(labels), width))
    kinds = _two_classes(labels, path)
    return Examples(rows, np.array(labels) == kinds[1], kinds)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that hold an example, numbered from 1."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            opener = next(
                (
                    o
                    for magic, o in _OPENERS.items()
                    if file.read(len(magic)) == magic or file.seek(0)
                ),
                open,
            )
        with opener(path, "rt", encoding="ascii") as lines:
            for number, line in enumerate(lines, start=1):
                text = line.partition("#")[0]
                if text.strip():
                    yield number, text
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is no text: {error.reason}; expected LIBSVM text, plain, bz2 or gz"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path} can't be read: {error}; expected LIBSVM text, plain, bz2 or gz"
        ) from error


def _number(text: str, where: str, expected: str, shown: str | None = None) -> float:
    try:
        return decimal_number(text)
    except ValueError:
        raise UserError(f"{where}: expected {expected}, got {(shown or text)[:40]!r}") from None


def _index(text: str, where: str, pair: str) -> int:
    try:
        index = whole_number(text) if text.isdecimal() else _MOST + 1
    except ValueError:
        index = _MOST + 1
    if index > _MOST:
        raise UserError(f"{where}: expected {_PAIR}, got {pair[:40]!r}")
    return index


def _check_order(indices: list[int], where: str, features: int | None) -> None:
    if indices and indices[0] < 1:
        raise UserError(f"{where}: index 0; expected indices from 1, add 1 to all of the file's")
    for before, after in pairwise(indices):
        if after <= before:
            raise UserError(f"{where}: index {after} after {before}; expected ascending indices")
    if features is not None and indices and indices[-1] > features:
        raise UserError(f"{where}: index {indices[-1]}; expected at most {features} features")


def _two_classes(labels: list[float], path: Path) -> tuple[float, float]:
    kinds = sorted(set(labels))
    if len(kinds) != 2:
        shown = ", ".join(f"{kind:g}" for kind in kinds[:5])
        raise UserError(f"{path} has {len(kinds)} label(s) ({shown}); expected two classes")
    return kinds[0], kinds[1]
