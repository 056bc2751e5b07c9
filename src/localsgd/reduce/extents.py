"""The positions of tensors in a vector that is compressed: a row, or a part of one.

Scalars between tensors are padding: they are zero, stay zero, and are counted by no mean.

Shapes: n scalars of the vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from localsgd.rows.layout import Layout

BITS = 8
"""Scalars whose signs share a byte; tensors start at multiples of it."""


class Extent(NamedTuple):
    """One tensor's scalars `[start, stop)`, cut to the vector."""

    start: int
    stop: int
    name: str


@dataclass(frozen=True)
class Extents:
    """The tensors of a vector, in order, without overlap.

    Args:
        length: n.
        fragments: none of them empty; each starts at a multiple of 8.
    """

    length: int
    fragments: tuple[Extent, ...]

    @staticmethod
    def whole(length: int, name: str = "the row") -> Extents:
        """All n scalars as one tensor."""
        return Extents(length, (Extent(0, length, name),) if length else ())

    @staticmethod
    def of(layout: Layout) -> Extents:
        """The tensors of a row."""
        slots = (slot for slot in layout.slots if slot.length)
        return Extents(
            layout.length,
            tuple(Extent(slot.offset, slot.offset + slot.length, slot.name) for slot in slots),
        )

    @property
    def scalars(self) -> int:
        """The number of scalars without padding."""
        return sum(stop - start for start, stop, _ in self.fragments)

    def part(self, start: int, stop: int) -> Extents:
        """The extents within `[start, stop)`, counted from `start`, a multiple of 8."""
        cut = (
            Extent(max(left, start) - start, min(right, stop) - start, name)
            for left, right, name in self.fragments
            if left < stop and right > start
        )
        return Extents(max(0, stop - start), tuple(cut))

    def split(self, size: int) -> Iterator[Extent]:
        """The extents, cut at multiples of `size` scalars of the vector."""
        for start, stop, name in self.fragments:
            border = start
            while border < stop:
                end = min(stop, (border // size + 1) * size)
                yield Extent(border, end, name)
                border = end

    def names(self, start: int, stop: int) -> str:
        """The names of the tensors that have scalars in `[start, stop)`."""
        found = [name for left, right, name in self.fragments if left < stop and right > start]
        return " or ".join(dict.fromkeys(found)) or "padding"


def parts(fragments: Extents, count: int) -> tuple[int, list[Extents]]:
    """Cuts a vector into `count` parts of one length, a multiple of 8.

    The last parts may be shorter, or empty.

    Returns:
        The length, and the extents of each part.
    """
    length = -(-fragments.length // (BITS * count)) * BITS
    ends = [min(fragments.length, length * index) for index in range(count + 1)]
    return length, [fragments.part(left, right) for left, right in pairwise(ends)]
