"""The levels over a user's model: one stack of them for each of its rows."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from localsgd.averaging.build import build_levels
from localsgd.averaging.delay import Fragmented
from localsgd.averaging.gossip import Gossip
from localsgd.averaging.level import Blocks, Level, Spare
from localsgd.averaging.placement import AnyLevel, Placement
from localsgd.averaging.stacks import Stacks
from localsgd.optimizer.settings import Settings
from localsgd.optimizer.sharded import Agreement
from localsgd.reduce.by_row import bound_to_all
from localsgd.rows.model_rows import Row
from localsgd.wire import Ledger


@dataclass
class Known:
    """What is known of the rows in a sync.

    Levels ask this and not their owner, which would hold itself alive.
    """

    finite: bool = False


class ModelLevels(Stacks[AnyLevel]):
    """Averages the workers' rows, and looks after the model and the weights in them.

    Args:
        rows: of this worker.
        placement: where the others are.
        agreement: with the other ranks of this worker.
        settings: reducers and outer optimizers of the levels; every row has its own copies.
        ledger: counts the traffic.
        says: called before this worker is left out of a mean, as its weights are not finite.
        refuse: raises where a worker can't be left out of a fragment.
        left_out: called after a mean that is without some workers, with whether it was of all.
        over: what the levels average in place of the rows, where they must not touch these.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        placement: Placement,
        agreement: Agreement,
        settings: Settings,
        ledger: Ledger,
        says: Callable[[], None] = lambda: None,
        refuse: Callable[[], None] = lambda: None,
        left_out: Callable[[bool], None] = lambda whole: None,
        over: Sequence[Tensor] | None = None,
    ) -> None:
        self._rows = rows
        self._agreement = agreement
        self._left_out = left_out
        self._known = known = Known()
        layouts = [row.layout for row in rows]
        by_level = [bound_to_all(reducer, layouts) for reducer in settings.reducers]
        stacks = [
            build_levels(
                placement,
                (row.values if over is None else over[index])[None],
                reducers=reducers,
                outers=settings.outers,
                ledger=ledger,
                delay=settings.delay,
                spare=Spare(row.layout.gaps, says, refuse, lambda: known.finite)
                if over is None
                else None,
            )
            for index, (row, *reducers) in enumerate(zip(rows, *by_level, strict=True))
        ]
        super().__init__(
            stacks, any(o is not None and o.per_learning_rate for o in settings.outers)
        )
        linear = (isinstance(part, Level) and part.reducer.linear for part in self._parts())
        self._leave_out_whole = over is None and placement.world.members > 1 and all(linear)

    def average(self, depth: int, first: int, meanwhile: Callable[[], None]) -> None:
        def look() -> None:
            self.check_some_in_place()
            meanwhile()

        with self._filled(averages=first < depth):
            super().average(depth, first, look)
        self._look_for_left_out()

    def final_average(self, first: int) -> None:
        for row in self._rows:
            row.check_in_place()
        with self._filled(averages=True):
            super().final_average(first)
        self._look_for_left_out()

    @contextmanager
    def _filled(self, averages: bool) -> Generator[None]:
        """A context for a sync: rows have what the model holds, which holds what they have then.

        Args:
            averages: whether any level does; otherwise all members are equal.
        """
        for row in self._rows:
            row.fill()
        if averages:
            self._known.finite = self._agreement.spread_not_finite(self._leave_out_whole)
        try:
            yield
        finally:
            self._known.finite = False
            for row in self._rows:
                row.empty()

    def catch_up(self) -> None:
        for row in self._rows:
            row.fill()
        super().catch_up()

    def _look_for_left_out(self) -> None:
        """Whether the means since the last time are without some workers. Asks no GPU."""
        found: list[Level | Fragmented] = []
        for part in self._parts():
            for level in part.settled if isinstance(part, Fragmented) else [part]:
                share, level.left_out = level.left_out, None
                if share is not None and share.device.type == "cpu":
                    found.append(part)
        if found:
            self._left_out(any(levels[-1] in found for levels in self._stacks))

    @property
    def keeps_anchors(self) -> bool:
        """Whether any level averages updates instead of models."""
        return any(not getattr(level, "plain", False) for level in self._parts())

    @property
    def at_anchors(self) -> bool:
        """Whether the workers' rows equal the last average."""
        for row in self._rows:
            row.fill()
        return all(
            level.members.data_ptr() == level.anchor.data_ptr()
            or torch.equal(level.members[:, 0], level.anchor)
            for level in self._parts()
        )

    def _parts(self) -> Iterator[Level | Fragmented]:
        """The levels; a level with blocks of different sizes gives each block."""
        for level in itertools.chain.from_iterable(self._stacks):
            assert not isinstance(level, Gossip), "LocalSGD has no neighbours"
            yield from level.levels if isinstance(level, Blocks) else [level]

    def check_some_in_place(self) -> None:
        """Raises if a parameter has left its row; each call checks a few of them, in turn."""
        for row in self._rows:
            row.check_some_in_place()

    def state(self) -> list[list[dict[str, Any]]]:
        return [[level.state() for level in levels] for levels in self._stacks]

    def load(self, state: Sequence[Sequence[dict[str, Any]]]) -> None:
        """Takes copies of what is in `state`."""
        for levels, saved in zip(self._stacks, state, strict=True):
            for level, own in zip(levels, saved, strict=True):
                level.load(copy.deepcopy(own))
