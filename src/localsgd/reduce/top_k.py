"""Sends the k largest scalars of a vector; the rest stays in the memory of error feedback.

Payload: k numbers in the order of their indices, then the indices, in 32 bits each or as a bitmap
of n bits, whichever is smaller (Stich et al. 2018, Sparsified SGD with memory).

Shapes: n scalars of a vector · k scalars that are sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.reduce.bits import pack, unpack
from localsgd.reduce.compressor import (
    Compressor,
    check_dtype,
    first_not_finite,
    maybe_not_finite,
    put,
    scale_dtype,
    take,
)
from localsgd.reduce.extents import BITS, Extents

INDEX = torch.int32


@dataclass(frozen=True)
class TopK(Compressor):
    """Keeps the largest scalars of a vector.

    Args:
        fraction: the fraction of scalars that are sent, in (0, 1]; k is rounded up.
    """

    fraction: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise UserError(
                f"top-k with a fraction of {self.fraction:g} would send "
                f"{'nothing (k = 0)' if self.fraction <= 0 else 'more than there is'}; "
                "give a fraction above 0 and up to 1, such as 0.01"
            )

    def codec(self, fragments: Extents, dtype: torch.dtype) -> TopKCodec:
        check_dtype(dtype)
        if fragments.length >= 2**31:
            raise UserError(
                f"top-k has indices of 32 bits, too few for {fragments.length} scalars; choose "
                "another compressor"
            )
        return TopKCodec(
            fragments, scale_dtype(dtype), rounded_up(self.fraction, fragments.scalars)
        )


def rounded_up(fraction: float, n: int) -> int:
    """So much of n, rounded up, but for what a product of floats is off by.

    >>> rounded_up(0.07, 100), rounded_up(5 / 6, 6), rounded_up(0.011, 100)
    (7, 5, 2)
    """
    exact = fraction * n
    nearest = round(exact)
    return nearest if nearest and math.isclose(exact, nearest, rel_tol=1e-12) else math.ceil(exact)


class TopKCodec:
    """Numbers and indices of vectors of one length."""

    def __init__(self, fragments: Extents, dtype: torch.dtype, k: int) -> None:
        self._fragments = fragments
        self._dtype = dtype
        self.k = k
        bitmap = -(-fragments.length // BITS)
        self.as_bitmap = bitmap < k * INDEX.itemsize
        self._value_bytes = k * dtype.itemsize
        self.size = self._value_bytes + (bitmap if self.as_bitmap else k * INDEX.itemsize)

    def encode(self, x: Tensor, payload: Tensor, draw: torch.Generator | None = None) -> None:
        indices = torch.topk(x.abs(), self.k, sorted=False).indices.sort().values
        put(x[indices].to(self._dtype), payload[: self._value_bytes])
        if self.as_bitmap:
            chosen = torch.zeros(len(x), dtype=torch.bool, device=x.device)
            chosen[indices] = True
            pack(chosen, payload[self._value_bytes :])
        else:
            put(indices.to(INDEX), payload[self._value_bytes :])

    def add(self, payload: Tensor, out: Tensor, factor: float = 1.0) -> None:
        indices, values = self._indices(payload), take(payload[: self._value_bytes], self._dtype)
        out[indices] += (factor * values).to(out.dtype)

    def doubts(self, payload: Tensor) -> Tensor:
        return maybe_not_finite(take(payload[: self._value_bytes], self._dtype))

    def fault(self, payload: Tensor) -> str | None:
        index = first_not_finite(take(payload[: self._value_bytes], self._dtype))
        if index is None:
            return None
        found = int(self._indices(payload)[index])
        return self._fragments.names(found, found + 1)

    def _indices(self, payload: Tensor) -> Tensor:
        """The indices in a payload, `[k]`, ascending."""
        indices = payload[self._value_bytes :]
        if self.as_bitmap:
            # With a known size it need not wait for the device to count.
            chosen = unpack(indices, self._fragments.length)
            return torch.nonzero_static(chosen, size=self.k).flatten()
        return take(indices, INDEX).long()
