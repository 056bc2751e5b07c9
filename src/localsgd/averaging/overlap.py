"""Gradients that are averaged slice by slice while the backward pass still makes the others.

A row of gradients is cut into slices, each a level of its own. As soon as the last worker hosted
here has the whole of a slice, and all slices before it in a fixed order have set out, its reduction
starts; after the pass those that are missing follow, and all are waited for. The order is that in
which backward passes usually make gradients, the same on all processes.

Shapes: g groups hosted here · m members of each hosted here · n scalars of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from localsgd.averaging.level import Level
from localsgd.rows.layout import Layout

SLICE = 1 << 18
"""Bytes of a slice, at least: smaller ones cost more calls than they hide."""
MOST = 8
"""Slices of a row, at most."""

MakeLevel = Callable[[Tensor, int, int], Level]
"""From a slice of the members, with its start and stop in the row, to its level."""


class Overlapped:
    """The innermost level over gradients, averaging in slices.

    Args:
        members: `[g, m, n]`, the gradients.
        make: makes the level of one slice; a plain mean.
        slices: their bounds, in the order in which they set out.
    """

    may_differ = False

    def __init__(self, members: Tensor, make: MakeLevel, slices: Sequence[tuple[int, int]]) -> None:
        self.members = members
        self.anchor = members[:, 0]
        self.syncs = 0
        self._slices = tuple(slices)
        self._levels = [make(members[..., start:stop], start, stop) for start, stop in slices]
        self._expecting = False
        self._missing: list[set[str]] = []
        self._gone = 0

    def listen(self, model: nn.Module, layout: Layout) -> None:
        """Takes notice of the gradients of `model`, whose row is complete last."""
        places: dict[str, list[int]] = {slot.name: [] for slot in layout.slots}
        self._names: list[set[str]] = [set() for _ in self._slices]
        for slot in layout.slots:
            for index, (start, stop) in enumerate(self._slices):
                if slot.offset < stop and start < slot.offset + slot.length:
                    places[slot.name].append(index)
                    self._names[index].add(slot.name)
        for name, parameter in model.named_parameters():
            if name in places:
                parameter.register_post_accumulate_grad_hook(self._hears(name, places[name]))

    def _hears(self, name: str, places: Sequence[int]) -> Callable[[Tensor], None]:
        def hear(parameter: Tensor) -> None:
            if self._expecting:
                for index in places:
                    self._missing[index].discard(name)
                self._set_out()

        return hear

    def expect(self) -> None:
        """The next backward pass is followed by a sync."""
        self._expecting = True
        self._missing = [set(names) for names in self._names]
        self._gone = 0

    def _set_out(self) -> None:
        """Starts the reductions that may start."""
        while self._gone < len(self._levels) and not self._missing[self._gone]:
            self._levels[self._gone].begin_average()
            self._gone += 1

    def average(self) -> None:
        if not self._expecting:
            self.expect()
        self._missing = [set() for _ in self._slices]
        self._set_out()
        self._expecting = False
        for level in self._levels:
            level.finish_average()
        self.syncs += 1

    def final_average(self) -> None:
        self.average()

    def share(self) -> None:
        for level in self._levels:
            level.share()

    def catch_up(self) -> None:
        for level in self._levels:
            level.catch_up()

    def begin_round(self, learning_rate: float) -> None:
        pass


def slices_of(layout: Layout, order: Sequence[str], multiple: int) -> list[tuple[int, int]]:
    """Bounds of slices, as even as multiples allow, in the order in which they are complete.

    Args:
        layout: of a row.
        order: names of its tensors in the order of the forward pass; gradients come the other way.
        multiple: slices begin at multiples of so many scalars.
    """
    units = layout.length // multiple
    count = max(1, min(MOST, layout.length * layout.dtype.itemsize // SLICE, units))
    ends = [multiple * (units * index // count) for index in range(count)] + [layout.length]
    rank = {name: index for index, name in enumerate(order)}

    def complete(bounds: tuple[int, int]) -> int:
        """The place in the forward pass of what a slice has to wait for."""
        start, stop = bounds
        inside = [s for s in layout.slots if s.offset < stop and start < s.offset + s.length]
        return min((rank[slot.name] for slot in inside), default=0)

    return sorted(pairwise(ends), key=complete, reverse=True)


def overlapped(level: Level, model: nn.Module, layout: Layout, multiple: int) -> Overlapped | Level:
    """`level`, over gradients, in slices; as it is where there would be one slice.

    Args:
        model: of the last worker hosted here.
        layout: of a row of gradients.
        multiple: as for `slices_of`.
    """
    slices = slices_of(layout, [name for name, _ in model.named_parameters()], multiple)
    if len(slices) < 2:
        return level

    def make(part: Tensor, start: int, stop: int) -> Level:
        return Level(part, level.collective, reducer=level.reducer)

    found = Overlapped(level.members, make, slices)
    found.listen(model, layout)
    return found
