"""Rounding to bfloat16: 8 bits of exponent, 8 of precision, rounded to nearest even.

Shapes: n scalars of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from localsgd.reduce.compressor import Compressor, check_dtype, put, take
from localsgd.reduce.extents import Extents

BLOCK = 1 << 16
"""Scalars that are processed at once, so that intermediate values stay in the cache."""

BLOCK_ON_GPU = 1 << 24
"""`BLOCK` on a GPU, where few calls matter more than the cache."""

SIZE, INFINITY = 0x7FFF, 0x7F80
"""Masks of a bfloat16: all bits but the sign's, and the bits of infinity."""


@dataclass(frozen=True)
class BFloat16(Compressor):
    """Rounding to bfloat16, 2 bytes a scalar."""

    def codec(self, fragments: Extents, dtype: torch.dtype) -> BFloat16Codec:
        check_dtype(dtype)
        return BFloat16Codec(fragments)


class BFloat16Codec:
    """Vectors of one length as bfloat16."""

    def __init__(self, fragments: Extents) -> None:
        self._fragments = fragments

    @property
    def size(self) -> int:
        return self._fragments.length * torch.bfloat16.itemsize

    def encode(self, x: Tensor, payload: Tensor, draw: torch.Generator | None = None) -> None:
        put(x, payload, torch.bfloat16)

    def keep(self, x: Tensor, error: Tensor, payload: Tensor) -> None:
        block, size = _block(x), torch.bfloat16.itemsize
        scratch = torch.empty(min(block, len(x)), dtype=torch.bfloat16, device=x.device)
        room = torch.empty_like(scratch, dtype=x.dtype)
        for part, kept, into in zip(
            x.split(block), error.split(block), payload.split(size * block), strict=True
        ):
            rounded = scratch[: len(part)].copy_(kept.add_(part))
            put(rounded, into)
            kept -= room[: len(part)].copy_(rounded)

    def add(self, payload: Tensor, out: Tensor, factor: float = 1.0) -> None:
        # A sum of two dtypes would convert slowly, and a whole vector would leave the cache.
        block = _block(out)
        room = torch.empty(min(block, len(out)), dtype=out.dtype, device=out.device)
        numbers = take(payload, torch.bfloat16)
        for part, into in zip(numbers.split(block), out.split(block), strict=True):
            into.add_(room[: len(part)].copy_(part), alpha=factor)

    def read(self, payloads: Tensor, out: Tensor) -> None:
        first, *others = payloads
        out.copy_(take(first, torch.bfloat16))
        for payload in others:
            self.add(payload, out)

    def doubts(self, payload: Tensor) -> Tensor:
        # Without the sign, only NaN and infinity have an exponent of ones, and are the greatest.
        numbers = take(payload, torch.int16)
        block = _block(numbers)
        room = torch.empty(min(block, len(numbers)), dtype=torch.int16, device=payload.device)
        most = room.new_zeros(())
        for part in numbers.split(block) if len(numbers) else ():
            sizes = torch.bitwise_and(part, SIZE, out=room[: len(part)])
            most = torch.maximum(most, sizes.max())
        return most >= INFINITY

    def fault(self, payload: Tensor) -> str | None:
        if not bool(self.doubts(payload)):
            return None
        sizes = torch.bitwise_and(take(payload, torch.int16), SIZE)
        index = int((sizes >= INFINITY).nonzero()[0])
        return self._fragments.names(index, index + 1)


def _block(x: Tensor) -> int:
    return BLOCK if x.device.type == "cpu" else BLOCK_ON_GPU
