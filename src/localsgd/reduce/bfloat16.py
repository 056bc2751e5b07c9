"""The upper half of a float32: 8 bits of exponent, 8 of precision, rounded to nearest even.

Shapes: n scalars of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from localsgd.reduce.compressor import check_dtype, first_not_finite, put, take
from localsgd.reduce.fragments import Fragments


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
        put(x.to(torch.bfloat16), payload)

    def add(self, payload: Tensor, out: Tensor, factor: float = 1.0) -> None:
        out.add_(take(payload, torch.bfloat16), alpha=factor)

    def fault(self, payload: Tensor) -> str | None:
        place = first_not_finite(take(payload, torch.bfloat16))
        return None if place is None else self._fragments.names(place, place + 1)
