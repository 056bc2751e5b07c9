"""Which scalars the scaled sign works on at once.

Neither small tensors one by one, whose calls would take longer than their work, nor more than stays
in the cache.

Shapes: l scalars of a run · b bytes of their signs, ceil(l / 8) · p scalars of it that are padding.
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
"""Scalars of a run, at most."""

AT_ONCE = 1 << 19
"""Scalars of several payloads that are read at once, at most, if they are more than a run's."""

BYTES = 256
"""That there are."""


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
        """Of the signs of the whole vector, those of this run."""
        return slice(self.start // BITS, -(-self.stop // BITS))

    @cached_property
    def offsets(self) -> list[int]:
        """Where its blocks start, from its own start on."""
        return [block.start - self.start for block in self.blocks]

    @cached_property
    def length(self) -> int:
        """Scalars of its bytes."""
        return BITS * (self.bytes.stop - self.bytes.start)

    def on(self, device: torch.device, name: str) -> Tensor:
        """One of its tensors on `device`, where it is carried once."""
        if (device, name) not in self._carried:
            self._carried[device, name] = getattr(self, name).to(device)
        return self._carried[device, name]

    @cached_property
    def _carried(self) -> dict[tuple[torch.device, str], Tensor]:
        return {}

    def read(self, signs: Tensor, scales: Tensor, scratch: Tensor) -> Sequence[Tensor]:
        """The signs `[P, b]` of this run, times `scales [P, s]` of the whole vector, in `scratch`:
        P vectors `[l]`, whose padding is 0.
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
        """From tables of the signs times each scale, and of zeros."""
        payloads, own = scales.shape
        if payloads * self._tables == 1:
            look_up(signs, unit * scales[0, 0], room)
            return
        tables = room.new_empty((payloads, self._tables, *unit.shape))
        torch.mul(scales[:, :, None, None], unit, out=tables[:, :own])
        if own < self._tables:
            tables[:, own:] = 0.0
        places = signs + self.on(signs.device, "_places")
        if payloads > 1:
            step = BYTES * self._tables
            places += torch.arange(0, payloads * step, step, device=signs.device).unsqueeze(1)
        look_up(places, tables.view(-1, BITS), room)

    @cached_property
    def _scales(self) -> slice:
        """Of the scales of the whole vector, those of its blocks."""
        return slice(self.blocks[0].scale, self.blocks[-1].scale + 1)

    @cached_property
    def _scale_at(self) -> Tensor:
        return self._scale_of_byte()

    def _scale_of_byte(self) -> Tensor:
        """The number of the scale `[b]` of the scalars of each byte."""
        starts = torch.tensor([block.start // BITS for block in self.blocks])
        scales = torch.tensor([block.scale for block in self.blocks])
        places = torch.arange(self.bytes.start, self.bytes.stop)
        return scales[torch.searchsorted(starts, places, right=True) - 1]

    @cached_property
    def _tables(self) -> int:
        """One for each scale, and one of zeros where there are bytes between blocks."""
        ends = (-(-block.stop // BITS) for block in self.blocks)
        starts = (block.start // BITS for block in self.blocks[1:])
        own = self._scales.stop - self._scales.start
        return own + any(end < start for end, start in zip(ends, starts, strict=False))

    @cached_property
    def _from_tables(self) -> bool:
        """Whether tables are short beside the run; to multiply byte by byte is slow."""
        return BYTES * self._tables <= 2 * self.length // BITS

    @cached_property
    def _places(self) -> Tensor:
        """Where the table of each byte `[b]` begins."""
        padding = self._inside.view(-1, BITS).any(1).logical_not()
        tables = self._scale_of_byte() - self._scales.start
        return tables.masked_fill_(padding, self._tables - 1).mul_(BYTES)

    @cached_property
    def _padding(self) -> Tensor | None:
        """The places `[p]` of what belongs to no block, up to the last byte's end."""
        return _where(~self._inside)

    @cached_property
    def _ragged(self) -> Tensor | None:
        """The padding that shares a byte with the end of a block."""
        shared = self._inside.view(-1, BITS).any(1).repeat_interleave(BITS)
        return _where(shared & ~self._inside)

    @cached_property
    def mask(self) -> Tensor:
        """The bytes `[b]` whose bits are 1 where there is no padding."""
        mask = torch.empty(self.length // BITS, dtype=torch.uint8)
        pack(self._inside, mask)
        return mask

    @property
    def _inside(self) -> Tensor:
        """Whether a scalar, up to the last byte's end, belongs to a block."""
        inside = torch.zeros(self.length, dtype=torch.bool)
        for start, stop, _ in self.blocks:
            inside[start - self.start : stop - self.start] = True
        return inside


def spans(blocks: Iterable[Block]) -> Iterator[Span]:
    """The blocks in as few runs as there can be; those longer than `LENGTH` are cut."""
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
    places = truths.nonzero().flatten()
    return places if len(places) else None
