"""The compressors that there are, each with an obvious reference, and updates to put into them.

Whoever adds one adds a line to `KINDS`: every test of compressors is then one of it too.

Shapes: g groups · m members hosted here · M members · n scalars · c bytes of a payload.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from localsgd.reduce import BFloat16, Compressor, Int8, Sign, TopK
from localsgd.reduce.extents import Extents
from localsgd.testing.comparing import LAYOUT, ROW, drawn, masked, updates

__all__ = ["LAYOUT", "ROW", "drawn", "masked", "updates"]
FLOAT = {torch.float32: 4, torch.float64: 8}


def signs(x: Tensor) -> Tensor:
    return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)


def sign_by_tensor(x: Tensor, row: Extents) -> Tensor:
    out = torch.zeros_like(x)
    for start, stop, _ in row.fragments:
        out[start:stop] = x[start:stop].abs().mean() * signs(x[start:stop])
    return out


def sign_by_row(x: Tensor, row: Extents) -> Tensor:
    mask = masked(row)
    return x[mask].abs().mean() * signs(x) * mask


def sign_by_chunk(x: Tensor, row: Extents) -> Tensor:
    out = torch.zeros_like(x)
    for start in range(0, row.length, 16):
        here = torch.zeros_like(x, dtype=torch.bool)
        here[start : start + 16] = masked(row)[start : start + 16]
        if here.any():
            out[here] = x[here].abs().mean() * signs(x[here])
    return out


def int8(x: Tensor, row: Extents) -> Tensor:
    chunks = x.split(16)
    return torch.cat(
        [c if not c.any() else (c / (s := c.abs().max() / 127)).round() * s for c in chunks]
    )


def largest(x: Tensor, row: Extents, share: float) -> Tensor:
    k = math.ceil(share * row.scalars)
    out = torch.zeros_like(x)
    for place_ in sorted(range(len(x)), key=lambda i: -abs(float(x[i])))[:k]:
        out[place_] = x[place_]
    return out


def chunks_of_16(row: Extents) -> int:
    return len({i // 16 for start, stop, _ in row.fragments for i in range(start, stop)})


@dataclass(frozen=True)
class Kind:
    """A compressor.

    Args:
        obvious: what a payload stands for, the slow way.
        size: bytes c, from where tensors lie and the bytes of a number.
        tolerance: by which the obvious way may differ, in float64.
    """

    name: str
    compressor: Compressor
    obvious: Callable[[Tensor, Extents], Tensor]
    size: Callable[[Extents, int], int]
    tolerance: float = 1e-14


def bits(row: Extents) -> int:
    return math.ceil(row.length / 8)


def size_of_largest(share: float, row: Extents, b: int) -> int:
    k = math.ceil(share * row.scalars)
    return k * b + min(4 * k, bits(row))


KINDS = [
    Kind("sign", Sign(), sign_by_tensor, lambda row, b: bits(row) + b * len(row.fragments)),
    Kind("sign row", Sign("row"), sign_by_row, lambda row, b: bits(row) + b * bool(row.fragments)),
    Kind("sign chunk", Sign(16), sign_by_chunk, lambda row, b: bits(row) + b * chunks_of_16(row)),
    Kind("int8", Int8(16), int8, lambda row, b: row.length + b * math.ceil(row.length / 16)),
    *(
        Kind(
            f"top-k {places}",
            TopK(share),
            partial(largest, share=share),
            partial(size_of_largest, share),
            0.0,
        )
        for places, share in (("bitmap", 0.2), ("indices", 0.01))
    ),
    Kind("bfloat16", BFloat16(), lambda x, row: x.bfloat16().to(x), lambda row, b: 2 * row.length),
]
STOCHASTIC = Kind("int8 stochastic", Int8(16, seed=3), int8, KINDS[3].size)
"""`obvious` is its rounding to the nearest, without a draw; `int8_drawn` with one."""


def int8_drawn(x: Tensor, draw: torch.Generator) -> Tensor:
    """Up with the probability of the fraction, scalar by scalar."""
    found = []
    for chunk in x.split(16):
        scale = float(chunk.abs().max()) / 127 or 1.0
        chances = torch.rand(16, generator=draw, dtype=torch.float64).tolist()
        found += [
            math.floor(value / scale + chance) * scale
            for value, chance in zip(chunk.tolist(), chances, strict=False)
        ]
    return torch.tensor(found, dtype=torch.float64)


every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
every_dtype = pytest.mark.parametrize("dtype", FLOAT, ids=str)
both_ways = pytest.mark.parametrize("way", ["gather", "two-phase"])
