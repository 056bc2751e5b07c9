"""What workers that come and go send each other in a sync, before anything moves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from localsgd.averaging.buffers import mean_buffers
from localsgd.averaging.level import Level
from localsgd.optimizer.membership import Meeting, Membership
from localsgd.rows.model_rows import Row
from localsgd.wire import InProcess
from localsgd.wire.metered import Metered


@dataclass
class Result:
    """What a sync gives if it counts.

    Args:
        means: of each row; none where nobody had trained yet, and all take over one model.
        buffers: of the averaged model.
        told: what schedules will see, `[K, n]`, if they look at anything.
    """

    means: list[Tensor] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    told: Tensor | None = None


@dataclass(frozen=True)
class Exchange:
    """One attempt at a mean, in copies of the rows.

    Args:
        rows: of this worker.
        copies: of them.
        levels: that average the copies, one for each.
        module: that the rows belong to.
        membership: who is there.
        world: all of them, metered.
    """

    rows: Sequence[Row]
    copies: Sequence[Tensor]
    levels: Sequence[Level]
    module: nn.Module
    membership: Membership
    world: Metered

    def result(self, meeting: Meeting, report: Tensor | None) -> Result:
        """What the workers of `meeting` come to; `report` is what schedules see of this one."""
        for row, own in zip(self.rows, self.copies, strict=True):
            own.copy_(row.values)
        peers = meeting.peers
        if not meeting.contributors:
            source = meeting.holders[0]
            for own in self.copies:
                peers.share(own, source)
            buffers = mean_buffers([self.module], InProcess())
            return Result([], self._shared(buffers, meeting, source))
        if self.membership.changed(meeting):
            before, now = len(self.membership.averaged), len(meeting.contributors)
            for level in self.levels:
                level.reducer.regroup(before, now)
        means = list(map(self._mean, self.levels, itertools.repeat(meeting)))
        buffers = mean_buffers([self.module], self.membership.collective)
        if meeting.has_guests:
            buffers = self._shared(buffers, meeting, meeting.contributors[0])
        self._hand_over(meeting)
        told = None if report is None else self.world.gather(report[None]).wait()[0]
        return Result(means, buffers, told)

    def _mean(self, level: Level, meeting: Meeting) -> Tensor:
        level.begin_average()
        mean = level.received()
        if meeting.has_guests:
            for result in (mean, *level.reducer.shared()):
                meeting.peers.share(result, meeting.contributors[0])
        return mean

    def _shared(
        self, buffers: dict[str, Tensor], meeting: Meeting, source: int
    ) -> dict[str, Tensor]:
        for buffer in buffers.values():
            sent = buffer.contiguous()
            meeting.peers.share(sent, source)
            buffer.copy_(sent)
        return buffers

    def _hand_over(self, meeting: Meeting) -> None:
        """Contributors that stay take over the error memories of those that leave.

        A memory adds e_k / K to the next mean; with e_j + e_k / stayers, its sum over the stayers
        is the same.
        """
        leavers = [r for r in meeting.contributors if meeting.standings[r].leaves]
        stayers = meeting.stayers
        if not leavers or not stayers:
            return
        own = meeting.peers.rank
        for level in self.levels:
            count = len(meeting.contributors)
            level.reducer.regroup(count, count)  # All of it is in one vector then.
            error = level.reducer.state().get("error")
            if error is None:  # on all
                continue
            given = error.clone() if own in leavers else torch.zeros_like(error)
            meeting.peers.sum(given)
            if own in stayers:
                error += given / len(stayers)

    def all_whole(self, meeting: Meeting) -> None:
        """Returns only if everybody gets here, with all that it needs."""
        meeting.peers.sum(torch.ones(1))
