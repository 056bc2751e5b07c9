"""Where tensors lie in a vector that is compressed: in a row, or in the part of a row that one
member owns.

What lies between tensors is padding: it is zero, is not counted by any mean, and stays zero.

Shapes: n scalars of the vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from localsgd.rows.layout import Layout

BITS = 8
"""Scalars whose signs share a byte: fragments start at multiples of it."""


class Extent(NamedTuple):
    """One tensor's scalars `[start, stop)`, or those of them that lie in the part at hand."""

    start: int
    stop: int
    name: str


@dataclass(frozen=True)
class Extents:
    """The fragments of a vector, in order, without overlap.

    Args:
        length: n.
        fragments: none of them empty; each starts at a multiple of 8.
    """

    length: int
    fragments: tuple[Extent, ...]

    @staticmethod
    def whole(length: int, name: str = "the row") -> Extents:
        """All n scalars as if they were one tensor."""
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
        """How many there are, padding left out."""
        return sum(stop - start for start, stop, _ in self.fragments)

    def part(self, start: int, stop: int) -> Extents:
        """Those of `[start, stop)`, counted from `start`, a multiple of 8."""
        cut = (
            Extent(max(left, start) - start, min(right, stop) - start, name)
            for left, right, name in self.fragments
            if left < stop and right > start
        )
        return Extents(max(0, stop - start), tuple(cut))

    def split(self, size: int) -> Iterator[Extent]:
        """The fragments, cut at multiples of `size` scalars of the vector."""
        for start, stop, name in self.fragments:
            border = start
            while border < stop:
                end = min(stop, (border // size + 1) * size)
                yield Extent(border, end, name)
                border = end

    def names(self, start: int, stop: int) -> str:
        """The tensors that reach into `[start, stop)`."""
        found = [name for left, right, name in self.fragments if left < stop and right > start]
        return " or ".join(dict.fromkeys(found)) or "padding"


def parts(fragments: Extents, count: int) -> tuple[int, list[Extents]]:
    """`count` parts of one length, a multiple of 8, in all of which the vector has room; the last
    ones may be shorter, or empty.

    Returns:
        The length, and what lies in each part.
    """
    length = -(-fragments.length // (BITS * count)) * BITS
    ends = [min(fragments.length, length * index) for index in range(count + 1)]
    return length, [fragments.part(left, right) for left, right in pairwise(ends)]
