"""Pickled dictionaries of arrays, strings and numbers, read without running what they name.

A pickle is a program: unpickling calls whatever it names. Here the few names under which NumPy
saves an array stand for inert records, every other name is refused, and no function of the pickle's
choosing is ever called. Arrays are made from the records afterwards, bytes and shape checked.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from localsgd.errors import UserError

_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
_UINT8 = ("u1", "uint8")


class _Dtype:
    """What the pickle said of an element type: the arguments of `numpy.dtype`."""

    def __init__(self, *arguments: Any) -> None:
        self.name = _text(arguments[0]) if arguments else ""

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment, which a uint8 doesn't have."""


class _Array:
    """What the pickle said of an array: shape, element type, order, bytes."""

    state: tuple[Any, ...] | None = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise pickle.UnpicklingError("an array without contents")
        _, shape, dtype, fortran, data = self.state
        if not isinstance(dtype, _Dtype) or dtype.name not in _UINT8:
            raise pickle.UnpicklingError("an array that is not of uint8")
        if not isinstance(data, bytes | bytearray) or len(data) != math.prod(shape):
            raise pickle.UnpicklingError("an array whose bytes do not fill its shape")
        flat = np.frombuffer(data, np.uint8)
        return flat.reshape(shape, order="F" if fortran else "C")


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # Fresh functions each time: a pickle may also set attributes of what it is given.
        if module in _MULTIARRAY and name == "_reconstruct":
            return lambda *_: _Array()
        if module in _NUMERIC and name == "_frombuffer":
            return lambda data, dtype, shape, order: _filled(data, dtype, shape, order)
        if module == "numpy" and name == "dtype":
            return lambda *arguments: _Dtype(*arguments)
        if module == "numpy" and name == "ndarray":
            return None
        raise pickle.UnpicklingError(f"it names {module}.{name}, which data has no need of")


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in `path`, keys as text, arrays as uint8 arrays, strings as bytes or text.

    Reads what Python 2 wrote, and what Python 3 writes with protocol 3 or later.

    Raises:
        UserError: no such file, damaged, or holding anything but plain data.
    """
    try:
        with path.open("rb") as file:
            found = _Reader(file, encoding="bytes").load()
        if not isinstance(found, dict):
            raise pickle.UnpicklingError(f"a {type(found).__name__} instead of a dictionary")
        return {
            _text(key): value.array() if isinstance(value, _Array) else value
            for key, value in found.items()
        }
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except Exception as error:  # damaged bytes make the unpickler raise nearly anything
        reason = str(error) or type(error).__name__
        raise UserError(
            f"{path} is damaged or foreign ({reason}); expected a pickled dictionary "
            "of uint8 arrays, lists, strings and numbers"
        ) from None


def _filled(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.state = (1, shape, dtype, _text(order) == "F", data)
    return array


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
