"""The scaled sign: one bit a scalar.

    C(v) = (||v||_1 / d) · sign(v),   sign(0) = +1

with one scale for each tensor, for the whole vector, or for fixed chunks of it; d is the number of
scalars that share a scale, padding left out (Lin et al. 2020, Algorithms 3 and 4; Karimireddy et
al. 2019, who scale each tensor). A tensor of zeros has the scale 0 and stays where it is.

Payload: the scales, then ceil(n / 8) bytes of signs.

Shapes: n scalars of a vector · s scales.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.reduce.bits import add_signs, pack_signs, sign_table
from localsgd.reduce.compressor import check_dtype, first_not_finite, put, scale_dtype, take
from localsgd.reduce.fragments import BITS, Fragments

BLOCK = 1 << 17
"""Scalars that are worked on at once, so that what passes between steps stays in the cache."""


class Block(NamedTuple):
    """Scalars `[start, stop)`, all of one scale."""

    start: int
    stop: int
    scale: int


@dataclass(frozen=True)
class Sign:
    """The scaled sign.

    Args:
        scales: what has a scale of its own: each `tensor`, the whole `row`, or each chunk of so
            many scalars (a multiple of 8).
    """

    scales: Literal["tensor", "row"] | int = "tensor"

    unbiased = False
    seed = None

    def __post_init__(self) -> None:
        valid = self.scales in ("tensor", "row")
        if isinstance(self.scales, int):
            valid = self.scales > 0 and self.scales % BITS == 0
        if not valid:
            raise UserError(
                f"scales = {self.scales!r} is not understood; give tensor, row, or the length of a "
                "chunk, a multiple of 8"
            )

    def codec(self, fragments: Fragments, dtype: torch.dtype) -> SignCodec:
        check_dtype(dtype)
        return SignCodec(fragments, scale_dtype(dtype), self.scales)


class SignCodec:
    """Signs and scales of vectors of one length."""

    def __init__(
        self, fragments: Fragments, dtype: torch.dtype, scales: Literal["tensor", "row"] | int
    ) -> None:
        self.fragments = fragments
        self._dtype = dtype
        self._blocks = tuple(_blocks(fragments, scales))
        self.scales = 1 + max((block.scale for block in self._blocks), default=-1)
        self._group = torch.tensor([block.scale for block in self._blocks], dtype=torch.int64)
        lengths = torch.tensor([block.stop - block.start for block in self._blocks])
        self._lengths = self._summed(lengths.double())
        self._scale_bytes = self.scales * dtype.itemsize

    @property
    def size(self) -> int:
        return self._scale_bytes + -(-self.fragments.length // BITS)

    def encode(self, x: Tensor, payload: Tensor, draw: torch.Generator | None = None) -> None:
        sums = torch.empty(len(self._blocks), dtype=self._dtype, device=x.device)
        scratch = torch.empty(BLOCK, dtype=self._dtype, device=x.device)
        bits = payload[self._scale_bytes :]
        for index, (start, stop, _) in enumerate(self._blocks):
            block = x[start:stop]
            pack_signs(block, bits[start // BITS : -(-stop // BITS)])
            size = scratch[: stop - start]
            torch.sum(torch.abs(block.to(self._dtype), out=size), 0, out=sums[index])
        # In float64 on the CPU, block by block, for the same bits on every device and hosting.
        means = self._summed(sums.double().cpu()) / self._lengths
        put(means.to(self._dtype), payload[: self._scale_bytes])

    def add(self, payload: Tensor, out: Tensor, factor: float = 1.0) -> None:
        self.add_scaled(payload, out, [factor * scale for scale in self.scales_of(payload)])

    def add_scaled(self, payload: Tensor, out: Tensor, scales: list[float]) -> None:
        """out <- out + the payload's signs, times these `scales` in place of its own."""
        bits = payload[self._scale_bytes :]
        scratch = torch.empty(BLOCK + BITS, dtype=self._dtype, device=out.device)
        last, table = -1, scratch
        for start, stop, scale in self._blocks:
            if scale != last:
                last, table = scale, sign_table(scales[scale], scratch)
            part = bits[start // BITS : -(-stop // BITS)]
            add_signs(part, table, out[start:stop], scratch)

    def scale_in_place(self, x: Tensor, scales: list[float]) -> None:
        """x [n] <- scale · x, block by block."""
        for start, stop, scale in self._blocks:
            x[start:stop] *= scales[scale]

    def scales_of(self, payload: Tensor) -> list[float]:
        return take(payload[: self._scale_bytes], self._dtype).tolist()

    def fault(self, payload: Tensor) -> str | None:
        scale = first_not_finite(take(payload[: self._scale_bytes], self._dtype))
        if scale is None:
            return None
        blocks = [block for block in self._blocks if block.scale == scale]
        return self.fragments.names(blocks[0].start, blocks[-1].stop)

    def _summed(self, values: Tensor) -> Tensor:
        """Values of blocks, added up by scale."""
        return torch.zeros(self.scales, dtype=torch.float64).index_add_(0, self._group, values)


def _blocks(fragments: Fragments, scales: Literal["tensor", "row"] | int) -> Iterator[Block]:
    """The fragments, cut so that a block has one scale and no more scalars than `BLOCK`."""
    chunk = scales if isinstance(scales, int) else max(1, fragments.length)
    scale, last = -1, None
    for start, stop, name in fragments.split(chunk):
        key = name if scales == "tensor" else start // chunk
        if key != last:
            scale, last = scale + 1, key
        for border in range(start, stop, BLOCK):
            yield Block(border, min(stop, border + BLOCK), scale)
