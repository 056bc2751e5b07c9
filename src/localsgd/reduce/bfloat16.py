"""The upper half of a float32: 8 bits of exponent, 8 of precision, rounded to nearest even.

Shapes: n scalars of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from localsgd.reduce.compressor import check_dtype, put, take
from localsgd.reduce.fragments import Fragments

BLOCK = 1 << 16
"""Scalars that are read at once, so that what is in between stays in the cache."""

SIZE, INFINITY = 0x7FFF, 0x7F80
"""All bits but the sign's, and those of infinity."""


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

    def keep(self, x: Tensor, error: Tensor, payload: Tensor) -> None:
        scratch = torch.empty(min(BLOCK, len(x)), dtype=torch.bfloat16, device=x.device)
        room = torch.empty_like(scratch, dtype=x.dtype)
        size = torch.bfloat16.itemsize
        for part, kept, into in zip(
            x.split(BLOCK), error.split(BLOCK), payload.split(size * BLOCK), strict=True
        ):
            rounded = scratch[: len(part)].copy_(kept.add_(part))
            put(rounded, into)
            kept -= room[: len(part)].copy_(rounded)

    def add(self, payload: Tensor, out: Tensor, factor: float = 1.0) -> None:
        # A sum of two dtypes would convert slowly, and a whole vector would leave the cache.
        room = torch.empty(min(BLOCK, len(out)), dtype=out.dtype, device=out.device)
        numbers = take(payload, torch.bfloat16)
        for part, into in zip(numbers.split(BLOCK), out.split(BLOCK), strict=True):
            into.add_(room[: len(part)].copy_(part), alpha=factor)

    def read(self, payloads: Tensor, out: Tensor) -> None:
        first, *others = payloads
        out.copy_(take(first, torch.bfloat16))
        for payload in others:
            self.add(payload, out)

    def fault(self, payload: Tensor) -> str | None:
        # Without the sign, only NaN and infinity have an exponent of ones, and are the greatest.
        numbers = take(payload, torch.int16)
        room = torch.empty(min(BLOCK, len(numbers)), dtype=torch.int16, device=payload.device)
        for index, part in enumerate(numbers.split(BLOCK)):
            sizes = torch.bitwise_and(part, SIZE, out=room[: len(part)])
            if len(part) and int(sizes.max()) >= INFINITY:
                place = index * BLOCK + int((sizes >= INFINITY).nonzero()[0])
                return self._fragments.names(place, place + 1)
        return None
