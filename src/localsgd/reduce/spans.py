"""Spans: the scalars that the scaled sign processes at once.

Small tensors are processed together, since calls would take longer than the work; a span is small
enough for the cache.

Shapes: l scalars of a span · b bytes of their signs, ceil(l / 8) · p of its scalars are padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from localsgd.reduce.bits import look_up, pack, sign_table
from localsgd.reduce.extents import BITS

LENGTH = 1 << 17
"""Most scalars of a span."""

AT_ONCE = 1 << 19
"""Most scalars of several payloads that are read at once; a single span may be longer."""

BYTES = 256
"""Number of different bytes."""


class Block(NamedTuple):
    """Scalars `[start, stop)`, all of one scale."""

    start: int
    stop: int
    scale: int


@dataclass(frozen=True)
class Span:
    """Neighbouring blocks, with the padding between them.

    Args:
        blocks: in order; each starts at a multiple of 8.
        first: how many blocks are before it in the vector.
    """

    blocks: tuple[Block, ...]
    first: int

    @cached_property
    def start(self) -> int:
        return self.blocks[0].start

    @cached_property
    def stop(self) -> int:
        return self.blocks[-1].stop

    @cached_property
    def bytes(self) -> slice:
        """The bytes of this span's signs among those of the whole vector."""
        return slice(self.start // BITS, -(-self.stop // BITS))

    @cached_property
    def offsets(self) -> list[int]:
        """The starts of its blocks, counted from the span's start."""
        return [block.start - self.start for block in self.blocks]

    @cached_property
    def length(self) -> int:
        """The number of scalars in its bytes."""
        return BITS * (self.bytes.stop - self.bytes.start)

    def on(self, device: torch.device, name: str) -> Tensor:
        """One of its tensors on `device`, to which it is copied once."""
        if (device, name) not in self._carried:
            self._carried[device, name] = getattr(self, name).to(device)
        return self._carried[device, name]

    @cached_property
    def _carried(self) -> dict[tuple[torch.device, str], Tensor]:
        return {}

    def read(self, signs: Tensor, scales: Tensor, scratch: Tensor) -> Sequence[Tensor]:
        """The signs `[P, b]` of this span times `scales [P, s]` of the whole vector.

        The result, P vectors `[l]` with a padding of 0, is in `scratch`.
        """
        payloads, end = signs.shape[0], self.stop - self.start
        whole = scratch[: payloads * self.length]
        room = whole.view(payloads, -1, BITS)
        unit = sign_table(room.dtype, room.device)
        if self._from_tables:
            self._look_up(signs, scales[:, self._scales], unit, room)
            padding = "_ragged"
        else:
            look_up(signs, unit, room)
            room *= scales[:, self.on(scales.device, "_scale_at")].unsqueeze(-1)
            padding = "_padding"
        if getattr(self, padding) is not None:
            whole.view(payloads, -1)[:, self.on(room.device, padding)] = 0.0
        if payloads == 1:
            return (whole[:end],)
        return whole.view(payloads, -1)[:, :end].unbind()

    def _look_up(self, signs: Tensor, scales: Tensor, unit: Tensor, room: Tensor) -> None:
        """Reads the signs from tables: of signs times each scale, and of zeros."""
        payloads, own = scales.shape
        if payloads * self._tables == 1:
            look_up(signs, unit * scales[0, 0], room)
            return
        tables = room.new_empty((payloads, self._tables, *unit.shape))
        torch.mul(scales[:, :, None, None], unit, out=tables[:, :own])
        if own < self._tables:
            tables[:, own:] = 0.0
        indices = signs + self.on(signs.device, "_table_starts")
        if payloads > 1:
            step = BYTES * self._tables
            indices += torch.arange(0, payloads * step, step, device=signs.device).unsqueeze(1)
        look_up(indices, tables.view(-1, BITS), room)

    @cached_property
    def _scales(self) -> slice:
        """The scales of its blocks among those of the whole vector."""
        return slice(self.blocks[0].scale, self.blocks[-1].scale + 1)

    @cached_property
    def _scale_at(self) -> Tensor:
        return self._scale_of_byte()

    def _scale_of_byte(self) -> Tensor:
        """The index `[b]` of the scale of each byte's scalars."""
        starts = torch.tensor([block.start // BITS for block in self.blocks])
        scales = torch.tensor([block.scale for block in self.blocks])
        indices = torch.arange(self.bytes.start, self.bytes.stop)
        return scales[torch.searchsorted(starts, indices, right=True) - 1]

    @cached_property
    def _tables(self) -> int:
        """The number of tables: one for each scale, and one of zeros for bytes between blocks."""
        ends = (-(-block.stop // BITS) for block in self.blocks)
        starts = (block.start // BITS for block in self.blocks[1:])
        own = self._scales.stop - self._scales.start
        return own + any(end < start for end, start in zip(ends, starts, strict=False))

    @cached_property
    def _from_tables(self) -> bool:
        """Whether tables are short beside the span; multiplying byte by byte is slow."""
        return BYTES * self._tables <= 2 * self.length // BITS

    @cached_property
    def _table_starts(self) -> Tensor:
        """The index `[b]` at which the table of each byte begins."""
        padding = self._inside.view(-1, BITS).any(1).logical_not()
        tables = self._scale_of_byte() - self._scales.start
        return tables.masked_fill_(padding, self._tables - 1).mul_(BYTES)

    @cached_property
    def _padding(self) -> Tensor | None:
        """The indices `[p]` of scalars that belong to no block, up to the last byte's end."""
        return _where(~self._inside)

    @cached_property
    def _ragged(self) -> Tensor | None:
        """The indices of the padding that shares a byte with the end of a block."""
        shared = self._inside.view(-1, BITS).any(1).repeat_interleave(BITS)
        return _where(shared & ~self._inside)

    @cached_property
    def mask(self) -> Tensor:
        """Bytes `[b]` with a bit of 1 for every scalar that is no padding."""
        mask = torch.empty(self.length // BITS, dtype=torch.uint8)
        pack(self._inside, mask)
        return mask

    @property
    def _inside(self) -> Tensor:
        """Whether each scalar, up to the last byte's end, belongs to a block."""
        inside = torch.zeros(self.length, dtype=torch.bool)
        for start, stop, _ in self.blocks:
            inside[start - self.start : stop - self.start] = True
        return inside


def spans(blocks: Iterable[Block]) -> Iterator[Span]:
    """Groups the blocks into as few spans as possible; blocks longer than `LENGTH` are cut."""
    held: list[Block] = []
    count = 0
    for block in _cut(blocks):
        if held and block.stop - held[0].start > LENGTH:
            yield Span(tuple(held), count - len(held))
            held = []
        held.append(block)
        count += 1
    if held:
        yield Span(tuple(held), count - len(held))


def _cut(blocks: Iterable[Block]) -> Iterator[Block]:
    for start, stop, scale in blocks:
        for border in range(start, stop, LENGTH):
            yield Block(border, min(stop, border + LENGTH), scale)


def _where(truths: Tensor) -> Tensor | None:
    indices = truths.nonzero().flatten()
    return indices if len(indices) else None
