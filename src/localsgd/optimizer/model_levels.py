"""The levels over a user's model: one stack of them for each of its rows."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from localsgd.averaging.build import build_levels
from localsgd.averaging.delay import Fragmented
from localsgd.averaging.level import Blocks, Level, Spare, average_and_share, final_sync
from localsgd.averaging.placement import Placement
from localsgd.optimizer.settings import Settings
from localsgd.reduce.reducer import bound_to_all
from localsgd.rows.model_rows import Row
from localsgd.wire import Ledger


class ModelLevels:
    """Lets the workers' rows are averaged.

    Args:
        rows: of this worker.
        placement: where the others are.
        settings: reducers and outer optimizers of the levels; every row has its own copies.
        ledger: counts what crosses.
        says: called before this worker is left out of a mean, as its weights are not finite.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        placement: Placement,
        settings: Settings,
        ledger: Ledger,
        says: Callable[[], None] = lambda: None,
    ) -> None:
        self._rows = rows
        layouts = [row.layout for row in rows]
        by_level = [bound_to_all(reducer, layouts) for reducer in settings.reducers]
        self._stacks = [
            build_levels(
                placement,
                row.values[None],
                reducers=reducers,
                outers=settings.outers,
                ledger=ledger,
                delay=settings.delay,
                spare=None if row.layout.spare is None else Spare(row.layout.spare, says),
            )
            for row, *reducers in zip(rows, *by_level, strict=True)
        ]
        self.needs_learning_rate = any(
            o is not None and o.per_learning_rate for o in settings.outers
        )

    def average(self, depth: int, first: int, meanwhile: Callable[[], None]) -> None:
        """Levels `first` to `depth` synchronise; the members of those inside hold equal models.

        `meanwhile` is called once, while the first of the rows is on its way. What it raises is
        raised when all rows have been averaged, as they hold sums and updates until then.
        """
        failed: list[Exception] = []

        def look() -> None:
            try:
                self.check_some_in_place()
                meanwhile()
            except Exception as error:
                failed.append(error)

        with torch.no_grad():
            for index, levels in enumerate(self._stacks):
                average_and_share(levels[:depth], first, meanwhile=None if index else look)
        if failed:
            raise failed[0]

    def take_left_out(self) -> bool:
        """Whether a mean since the last time is without some workers. Asks no GPU."""
        found = False
        for part in self._parts():
            for level in part.levels if isinstance(part, Fragmented) else [part]:
                share, level.left_out = level.left_out, None
                found |= share is not None and share.device.type == "cpu"
        return found

    @torch.no_grad()
    def catch_up(self) -> None:
        """All anchors become what the model holds now, which all workers hold."""
        for levels in self._stacks:
            for level in levels:
                level.catch_up()

    @property
    def keeps_anchors(self) -> bool:
        """Whether any level averages updates in place of models."""
        return any(not getattr(level, "plain", False) for level in self._parts())

    @property
    def at_anchors(self) -> bool:
        """Whether the workers' rows hold what was last averaged."""
        return all(
            level.members.data_ptr() == level.anchor.data_ptr()
            or torch.equal(level.members[:, 0], level.anchor)
            for level in self._parts()
        )

    def _parts(self) -> Iterator[Level | Fragmented]:
        """The levels, and each block of one whose blocks differ in size."""
        for level in itertools.chain.from_iterable(self._stacks):
            yield from level.levels if isinstance(level, Blocks) else [level]

    def check_some_in_place(self) -> None:
        """Refuses where a parameter has left its row; a few are looked at, in turn."""
        for row in self._rows:
            row.check_some_in_place()

    @torch.no_grad()
    def final_average(self, first: int) -> None:
        """The last sync, of the levels from `first` on."""
        for row, levels in zip(self._rows, self._stacks, strict=True):
            row.check_in_place()
            final_sync(levels, first)

    @property
    def may_differ(self) -> bool:
        """Whether models may differ although they have just averaged."""
        return any(level.may_differ for levels in self._stacks for level in levels)

    def begin_round(self, level: int, learning_rate: float) -> None:
        for levels in self._stacks:
            levels[level].begin_round(learning_rate)

    def state(self) -> list[list[dict[str, Any]]]:
        return [[level.state() for level in levels] for levels in self._stacks]

    def load(self, state: Sequence[Sequence[dict[str, Any]]]) -> None:
        """Takes copies of what is in `state`."""
        for levels, saved in zip(self._stacks, state, strict=True):
            for level, own in zip(levels, saved, strict=True):
                level.load(copy.deepcopy(own))
