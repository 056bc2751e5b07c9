"""The upper half of a float32: 8 bits of exponent, 8 of precision, rounded to nearest even.

Shapes: n scalars of a vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from localsgd.reduce.compressor import check_dtype, first_not_finite, put, take
from localsgd.reduce.fragments import Fragments

BLOCK = 1 << 16
"""Scalars that are read at once, so that what is in between stays in the cache."""


@dataclass(frozen=True)
class BFloat16:
    """Rounding to bfloat16, 2 bytes a scalar."""

    unbiased = False
    seed = None

    def codec(self, fragments: Fragments, dtype: torch.dtype) -> BFloat16Codec:
        check_dtype(dtype)
        return BFloat16Codec(fragments)


class BFloat16Codec:
    """Vectors of one length as bfloat16."""

    def __init__(self, fragments: Fragments) -> None:
        self._fragments = fragments

    @property
    def size(self) -> int:
        return self._fragments.length * torch.bfloat16.itemsize

    def encode(self, x: Tensor, payload: Tensor, draw: torch.Generator | None = None) -> None:
        put(x, payload, torch.bfloat16)

    def add(self, payload: Tensor, out: Tensor, factor: float = 1.0) -> None:
        for part, into in zip(_read(payload, out.dtype), out.split(BLOCK), strict=True):
            into.add_(part, alpha=factor)

    def fault(self, payload: Tensor) -> str | None:
        for index, part in enumerate(_read(payload, torch.float32)):
            place = first_not_finite(part)
            if place is not None:
                place += index * BLOCK
                return self._fragments.names(place, place + 1)
        return None


def _read(payload: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """What it stands for, block by block, each in the place of the one before.

    A sum of two dtypes would convert slowly, and a whole vector would leave the cache.
    """
    numbers = take(payload, torch.bfloat16)
    scratch = torch.empty(min(BLOCK, len(numbers)), dtype=dtype, device=payload.device)
    for part in numbers.split(BLOCK):
        yield scratch[: len(part)].copy_(part)
