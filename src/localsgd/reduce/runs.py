"""Which scalars the scaled sign works on at once.

Neither small tensors one by one, whose calls would take longer than their work, nor more than stays
in the cache.

Shapes: l scalars of a run · b bytes of their signs, ceil(l / 8) · p scalars of it that are padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from localsgd.reduce.bits import pack
from localsgd.reduce.fragments import BITS

LENGTH = 1 << 17
"""Scalars of a run, at most."""


class Block(NamedTuple):
    """Scalars `[start, stop)`, all of one scale."""

    start: int
    stop: int
    scale: int


@dataclass(frozen=True)
class Run:
    """Neighbouring blocks, with the padding between them.

    Args:
        blocks: in order; each starts at a multiple of 8.
        first: how many blocks are before it in the vector.
    """

    blocks: tuple[Block, ...]
    first: int

    @property
    def start(self) -> int:
        return self.blocks[0].start

    @property
    def stop(self) -> int:
        return self.blocks[-1].stop

    @property
    def bytes(self) -> slice:
        """Of the signs of the whole vector, those of this run."""
        return slice(self.start // BITS, -(-self.stop // BITS))

    @property
    def offsets(self) -> list[int]:
        """Where its blocks start, from its own start on."""
        return [block.start - self.start for block in self.blocks]

    @cached_property
    def scale_of_byte(self) -> Tensor:
        """The number of the scale `[b]` of the scalars of each byte."""
        starts = torch.tensor([block.start // BITS for block in self.blocks])
        scales = torch.tensor([block.scale for block in self.blocks])
        places = torch.arange(self.bytes.start, self.bytes.stop)
        return scales[torch.searchsorted(starts, places, right=True) - 1]

    @cached_property
    def padding(self) -> Tensor:
        """The places `[p]` of what belongs to no block, up to the last byte's end."""
        return self._inside.logical_not().nonzero().flatten()

    @cached_property
    def mask(self) -> Tensor:
        """The bytes `[b]` whose bits are 1 where there is no padding."""
        mask = torch.empty(len(self.scale_of_byte), dtype=torch.uint8)
        pack(self._inside, mask)
        return mask

    @property
    def _inside(self) -> Tensor:
        inside = torch.zeros(BITS * len(self.scale_of_byte), dtype=torch.bool)
        for start, stop, _ in self.blocks:
            inside[start - self.start : stop - self.start] = True
        return inside


def runs(blocks: Iterable[Block]) -> Iterator[Run]:
    """The blocks in as few runs as there can be; those longer than `LENGTH` are cut."""
    held: list[Block] = []
    count = 0
    for block in _cut(blocks):
        if held and block.stop - held[0].start > LENGTH:
            yield Run(tuple(held), count - len(held))
            held = []
        held.append(block)
        count += 1
    if held:
        yield Run(tuple(held), count - len(held))


def _cut(blocks: Iterable[Block]) -> Iterator[Block]:
    for start, stop, scale in blocks:
        for border in range(start, stop, LENGTH):
            yield Block(border, min(stop, border + LENGTH), scale)
