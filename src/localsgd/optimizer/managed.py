"""Levels whose workers come and go: a sync is taken whole, by all who are left, or not at all.

    copy <- w_k;  mean of the copies;  all have it whole?  then  anchor <- outer(anchor, mean);
    w_k <- anchor

A sum that fails half-way has changed part of the memory that it ran in, so it runs in a copy of the
row. Models, anchors and outer optimizers move only once every worker has said that it has the whole
mean, and error memories go back to what they were if not. Then the sync is tried again with those
who are left, until it counts.

One doubt remains, as it must: a worker whose neighbour dies just while they tell each other that
all is whole may not learn the outcome. It has moved nothing, so that it counts as behind; if others
have gone on, it gets at their next sync what they have.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from localsgd.averaging.buffers import KeptBuffers, not_finite, persistent, put_buffers
from localsgd.averaging.derived import renew, renew_attributes
from localsgd.averaging.level import Level
from localsgd.averaging.placement import HostedLevel, Placement
from localsgd.averaging.topology import Topology
from localsgd.errors import PeerLost
from localsgd.optimizer.managed_exchange import Exchange, Result
from localsgd.optimizer.membership import Meeting, Membership
from localsgd.optimizer.model_levels import ModelLevels
from localsgd.optimizer.not_finite import clear_not_finite
from localsgd.optimizer.reports import Reports
from localsgd.optimizer.settings import Settings
from localsgd.optimizer.sharded import Agreement
from localsgd.rows.model_rows import Row
from localsgd.wire import InProcess, Ledger
from localsgd.wire.engine import Broken
from localsgd.wire.metered import Metered


def managed_placement(membership: Membership) -> Placement:
    """One worker here, and one level, which joins it with whoever is there."""
    level = HostedLevel(1, 1, membership.collective)
    return Placement(Topology((1,)), 0, 1, (level,), InProcess())


class ManagedLevels(ModelLevels):
    """Averages the rows of workers that come and go.

    Args:
        rows: of this worker.
        module: that they belong to.
        placement: from `managed_placement`.
        settings: as in `ModelLevels`.
        membership: who is there.
        patience: how long a sync is tried.
        inner: its state is cleared of what is not finite after a mean without this worker.
        ledger: counts the traffic.

    Attributes:
        buffers: of the model that was averaged last.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        module: nn.Module,
        placement: Placement,
        settings: Settings,
        membership: Membership,
        patience: timedelta,
        inner: Optimizer,
        ledger: Ledger,
    ) -> None:
        copies = [row.values.clone() for row in rows]
        self._module = module
        self._membership = membership
        self._patience = patience
        self.buffers: dict[str, Tensor] = {}
        self._entry = ledger.levels[-1]
        self._reports: Reports | None = None
        self._inner = inner
        alone = Agreement(placement, rows)
        super().__init__(rows, placement, alone, settings, ledger, over=copies)
        world = Metered(membership.collective, self._entry)
        self._exchange = Exchange(rows, copies, tuple(self.levels), module, membership, world)

    @property
    def levels(self) -> Iterator[Level]:
        """One for each row."""
        for level in self._parts():
            assert isinstance(level, Level)
            yield level

    @property
    def at_anchors(self) -> bool:
        pairs = zip(self._rows, self.levels, strict=True)
        return all(torch.equal(row.values, level.anchor[0]) for row, level in pairs)

    def average(self, depth: int, first: int, meanwhile: Any) -> None:
        self.check_some_in_place()
        self.sync()
        meanwhile()

    def final_average(self, first: int) -> None:
        for row in self._rows:
            row.check_in_place()
        self.sync()

    def catch_up(self) -> None:
        """Does nothing: anchors are what all have, and one worker alone can't set them."""

    def tell(self, reports: Reports) -> None:
        """From now on workers tell each other at every sync what schedules see."""
        self._reports = reports if reports.signals.needed else None

    def _own_report(self) -> Tensor | None:
        """Once for a sync, however often it is tried."""
        if self._reports is None:
            return None
        try:
            found = self._reports.own() if self._membership.trained else self._reports.nothing()
        except BaseException:
            self._membership.engine.leave()
            raise
        return found.to("cpu", torch.float64)

    @torch.no_grad()
    def sync(self) -> None:
        """Averages with whoever is there, as often as it takes."""
        start, own = time.monotonic(), self._own_report()
        while not self._counts(own):
            if time.monotonic() - start > self._patience.total_seconds():
                raise PeerLost(
                    f"no sync has come to an end within {self._patience.total_seconds():.0f} s "
                    "(`timeout`), as workers went again and again or too few were left; the model "
                    "is as it was before the sync"
                )

    def _counts(self, report: Tensor | None) -> bool:
        """One attempt."""
        membership, engine = self._membership, self._membership.engine
        memories: list[dict[str, Any]] | None = None
        failure: Broken | None = None
        meeting, result = None, Result()
        try:
            meeting = self._met()
            memories = self._memories()
            result = self._exchange.result(meeting, report)
            self._exchange.all_whole(meeting)
        except Broken as broken:
            failure = broken
        except PeerLost:
            raise
        except BaseException as error:
            engine.settle(Broken(str(error)))
            engine.leave()
            raise
        if not engine.settle(failure) or meeting is None:
            if memories is not None:
                for level, memory in zip(self.levels, memories, strict=True):
                    level.reducer.load(memory)
            return False
        self._take(meeting, result)
        membership.committed(meeting)
        return True

    def _met(self) -> Meeting:
        start = time.perf_counter()
        try:
            return self._membership.meet(self._finite(), self._norm())
        finally:
            self._entry.seconds += time.perf_counter() - start

    def _finite(self) -> bool:
        return all(bool(row.values.isfinite().all()) for row in self._rows)

    def _errors(self) -> Iterator[Tensor]:
        for level in self.levels:
            for key, value in level.reducer.state().items():
                if key.endswith("error"):
                    yield value

    def _norm(self) -> float:
        return sum(float(error.norm()) ** 2 for error in self._errors()) ** 0.5

    def _memories(self) -> list[dict[str, Any]]:
        return [copy.deepcopy(level.reducer.state()) for level in self.levels]

    def _take(self, meeting: Meeting, result: Result) -> None:
        """The sync counts: everything moves."""
        guest = meeting.peers.rank not in meeting.contributors
        for index, (row, level) in enumerate(zip(self._rows, self.levels, strict=True)):
            if result.means:
                level.take(result.means[index])
            elif not level.plain:
                level.anchor.copy_(self._exchange.copies[index])
            row.values.copy_(level.anchor[0])
            if guest:
                level.reducer.regroup(0, len(meeting.contributors))
        self.buffers = result.buffers
        if self._reports is not None and result.told is not None:
            self._reports.take(result.told)
        if not meeting.own.finite:
            clear_not_finite(self._inner)
        if not result.means or not_finite(persistent(self._module)) > not_finite(self.buffers):
            self.show_buffers()

    @contextmanager
    def shown(self) -> Generator[None]:
        """The module holds the model of the last sync inside, and its own again afterwards."""
        own = [row.values.clone() for row in self._rows]
        buffers = KeptBuffers(self._module)
        with torch.no_grad():
            for row, level in zip(self._rows, self.levels, strict=True):
                row.values.copy_(level.anchor[0])
            self.show_buffers()
        try:
            yield
        finally:
            with torch.no_grad():
                for row, values in zip(self._rows, own, strict=True):
                    row.values.copy_(values)
            buffers.restore()
            renew_attributes(self._module)

    def show_buffers(self) -> None:
        """The module's buffers become those of the model that was averaged last."""
        if self.buffers:
            put_buffers(self._module, self.buffers)
            renew(self._module)

    # A saved run.

    def state(self) -> list[list[dict[str, Any]]]:
        return [[{**level.state(), "anchor": level.anchor}] for level in self.levels]

    @torch.no_grad()
    def load(self, state: Sequence[Sequence[dict[str, Any]]]) -> None:
        super().load(state)
        for level, [saved] in zip(self.levels, state, strict=True):
            level.anchor.copy_(saved["anchor"])

    # What a worker that is behind gets.

    def shared(self) -> list[dict[str, Any]]:
        """What is equal on all workers after a sync, without the plain mean, which the next sync
        gives.
        """
        found = [level.state() for level in self.levels]
        return [{k: v for k, v in state.items() if k != "reducer"} for state in found]

    @torch.no_grad()
    def load_shared(self, shared: Sequence[dict[str, Any]]) -> None:
        """Goes on from what another worker has `shared`."""
        for row, level, state in zip(self._rows, self.levels, shared, strict=True):
            level.reducer.regroup(0, 1)
            level.load({**state, "reducer": level.reducer.state()})
            if not level.plain:
                row.values.copy_(level.anchor[0])

    @property
    def holds_anchor(self) -> bool:
        """Whether what was `shared` has the model of the last sync."""
        return not any(level.plain for level in self.levels)
