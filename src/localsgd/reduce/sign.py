"""The scaled sign: one bit per scalar.

    C(v) = (||v||_1 / d) · sign(v),   sign(0) = +1

with one scale for each tensor, for the whole vector, or for fixed chunks of it; d is the number of
scalars that share a scale, without padding (Lin et al. 2020, Algorithms 3 and 4; Karimireddy et al.
2019, who scale each tensor). A tensor of zeros has the scale 0 and does not move.

Payload: the scales, then ceil(n / 8) bytes of signs.

Shapes: n scalars of a vector · s scales · c bytes of a payload · P payloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.reduce.bits import pack_signs
from localsgd.reduce.compressor import (
    Compressor,
    check_dtype,
    first_not_finite,
    maybe_not_finite,
    put,
    scale_dtype,
    take,
    widest,
)
from localsgd.reduce.extents import BITS, Extents
from localsgd.reduce.spans import AT_ONCE, Block, Span, spans


@dataclass(frozen=True)
class Sign(Compressor):
    """The scaled sign.

    Args:
        scales: which scalars share a scale: each `tensor`, the whole `row`, or each chunk of this
            many scalars (a multiple of 8).
    """

    scales: Literal["tensor", "row"] | int = "tensor"

    def __post_init__(self) -> None:
        valid = self.scales in ("tensor", "row")
        if isinstance(self.scales, int):
            valid = self.scales > 0 and self.scales % BITS == 0
        if not valid:
            raise UserError(
                f"scales = {self.scales!r} is not understood; give tensor, row, or the length of a "
                "chunk, a multiple of 8"
            )

    def codec(self, fragments: Extents, dtype: torch.dtype) -> SignCodec:
        check_dtype(dtype)
        return SignCodec(fragments, scale_dtype(dtype), self.scales)


class SignCodec:
    """Signs and scales of vectors of one length."""

    def __init__(
        self, fragments: Extents, dtype: torch.dtype, scales: Literal["tensor", "row"] | int
    ) -> None:
        self.fragments = fragments
        self._dtype = dtype
        self._runs = tuple(spans(_blocks(fragments, scales)))
        self._blocks = tuple(block for run in self._runs for block in run.blocks)
        self.scales = 1 + max((block.scale for block in self._blocks), default=-1)
        self._group = torch.tensor([block.scale for block in self._blocks], dtype=torch.int64)
        lengths = torch.tensor([block.stop - block.start for block in self._blocks])
        self._lengths = self._summed(lengths.double(), self._group)
        self._there: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._scale_bytes = self.scales * dtype.itemsize
        self._room = BITS * max((run.bytes.stop - run.bytes.start for run in self._runs), default=0)

    @property
    def size(self) -> int:
        return self._scale_bytes + -(-self.fragments.length // BITS)

    def encode(self, x: Tensor, payload: Tensor, draw: torch.Generator | None = None) -> None:
        self._encode(x, None, payload)

    def keep(self, x: Tensor, error: Tensor, payload: Tensor) -> None:
        self._encode(error, x, payload)
        self.add(payload, error, -1.0)

    def _encode(self, x: Tensor, more: Tensor | None, payload: Tensor) -> None:
        """Encodes x [n], to which `more` is added first, block by block."""
        # Sums are in float64 and by block, for the same bits with any number of processes.
        wide = widest(x.device)
        sums = torch.empty(len(self._blocks), dtype=wide, device=x.device)
        scratch = torch.empty(self._room, dtype=self._dtype, device=x.device)
        bits = payload[self._scale_bytes :]
        for run in self._runs:
            part = x[run.start : run.stop]
            if more is not None:
                part += more[run.start : run.stop]
            signs = bits[run.bytes]
            pack_signs(part, signs)
            if len(run.blocks) > 1:
                signs &= run.on(signs.device, "mask")
            sizes = torch.abs(part.to(self._dtype), out=scratch[: len(part)])
            sums[run.first : run.first + len(run.blocks)] = _sums(sizes, run)
        if x.device not in self._there:
            self._there[x.device] = (self._group.to(x.device), self._lengths.to(x.device, wide))
        group, lengths = self._there[x.device]
        means = self._summed(sums, group) / lengths
        put(means.to(self._dtype), payload[: self._scale_bytes])

    def add(self, payload: Tensor, out: Tensor, factor: float = 1.0) -> None:
        payloads = payload.unsqueeze(0)
        scales = self.scales_of(payloads).to(widest(payload.device), copy=True).mul_(factor)
        scales = scales.to(self._dtype)
        self.add_scaled(payloads, out, scales)

    def read(self, payloads: Tensor, out: Tensor) -> None:
        end = 0
        for run, parts in self._scaled(payloads, self.scales_of(payloads)):
            own = out[run.start : run.stop]
            fresh = end < run.stop
            if fresh:
                out[end : run.start] = 0.0
                own.copy_(parts[0])
                end = run.stop
            for part in parts[fresh:]:
                own += part
        out[end:] = 0.0

    def add_scaled(self, payloads: Tensor, out: Tensor, scales: Tensor) -> None:
        """Adds the signs of `payloads [P, c]` times the given `scales [P, s]` to `out`."""
        for run, parts in self._scaled(payloads, scales):
            own = out[run.start : run.stop]
            for part in parts:
                own += part

    def _scaled(self, payloads: Tensor, scales: Tensor) -> Iterator[tuple[Span, Sequence[Tensor]]]:
        """The signs of each span times `scales [P, s]`, for some payloads at a time.

        Each pass overwrites the memory of the last one.
        """
        bits = payloads[:, self._scale_bytes :]
        count = payloads.shape[0]
        room = max(self._room, min(AT_ONCE, self._room * count))
        scratch = torch.empty(room, dtype=self._dtype, device=payloads.device)
        for run in self._runs:
            signs = bits[:, run.bytes]
            at_once = max(1, AT_ONCE // run.length)
            passes: Iterable[tuple[Tensor, Tensor]] = [(signs, scales)]
            if count > at_once:
                passes = zip(signs.split(at_once), scales.split(at_once), strict=True)
            for some, of_some in passes:
                yield run, run.read(some, of_some, scratch)

    def scale_in_place(self, x: Tensor, scales: list[float]) -> None:
        """x [n] <- scale · x, block by block."""
        for start, stop, scale in self._blocks:
            x[start:stop] *= scales[scale]

    def scales_of(self, payloads: Tensor) -> Tensor:
        """The scales `[P, s]` in payloads `[P, c]`; to be read only."""
        own = payloads[:, : self._scale_bytes].reshape(-1)
        return take(own, self._dtype).view(payloads.shape[0], self.scales)

    def doubts(self, payload: Tensor) -> Tensor:
        return maybe_not_finite(self.scales_of(payload.unsqueeze(0)))

    def fault(self, payload: Tensor) -> str | None:
        scale = first_not_finite(self.scales_of(payload.unsqueeze(0))[0])
        if scale is None:
            return None
        blocks = [block for block in self._blocks if block.scale == scale]
        return self.fragments.names(blocks[0].start, blocks[-1].stop)

    def _summed(self, values: Tensor, group: Tensor) -> Tensor:
        """The sums of blocks' values by scale."""
        return values.new_zeros(self.scales).index_add_(0, group, values)


def _blocks(fragments: Extents, scales: Literal["tensor", "row"] | int) -> Iterator[Block]:
    """The extents, cut so that each block has one scale."""
    chunk = scales if isinstance(scales, int) else max(1, fragments.length)
    scale, last = -1, None
    for start, stop, name in fragments.split(chunk):
        key = name if scales == "tensor" else start // chunk
        if key != last:
            scale, last = scale + 1, key
        yield Block(start, stop, scale)


def _sums(sizes: Tensor, run: Span) -> Tensor:
    """The sum of each block of the span, `[blocks]`; scalars between blocks are 0."""
    if len(run.blocks) == 1 or sizes.device.type != "cpu":
        ends = [*run.offsets[1:], len(sizes)]
        parts = (sizes[start:end].sum() for start, end in zip(run.offsets, ends, strict=True))
        return torch.stack(list(parts))
    return torch.from_numpy(np.add.reduceat(sizes.numpy(), run.offsets, dtype=np.float64))
