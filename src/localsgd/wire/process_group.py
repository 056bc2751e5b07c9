"""Collectives over `torch.distributed` process groups: gloo on CPU, NCCL on GPUs.

They use sums, never the backend's mean: gloo's has been wrong for some callers, and a single
division by M rounds less than one in each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from localsgd.wire.ahead import Ahead
from localsgd.wire.collective import Collective, Pending, Sending
from localsgd.wire.in_process import sum_members
from localsgd.wire.presence import Presence

# Renamed in torch 2.13, where the old name warns.
_all_gather: Callable[..., dist.Work | None] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)


DIRECT = 1 << 16
"""Bytes above which gloo's own gather is slower than direct sends, about three times."""


@dataclass(frozen=True)
class ProcessGroup:
    """One group (g = 1) whose M members are spread evenly over processes, in rank order.

    Args:
        group: the processes, as from `torch.distributed.new_group`.
        hosted: m, the members that each process hosts.
        presence: checks on waits that take long.
    """

    group: dist.ProcessGroup
    hosted: int = 1
    presence: Presence | None = None

    @cached_property
    def processes(self) -> int:
        return self.group.size()

    @cached_property
    def members(self) -> int:
        return self.processes * self.hosted

    def sum(self, x: Tensor) -> Pending[Tensor]:
        total = sum_members(x)
        # The group's own call: for small models the overhead of `dist.all_reduce` matters.
        return self._started(self.group.allreduce([total]), total)

    def gather(self, x: Tensor) -> Pending[Tensor]:
        gathered = x.new_empty((1, self.members, x.shape[-1]))
        return self.gather_into(gathered, x.contiguous().view(-1))

    def exchange(self, x: Tensor) -> Pending[Tensor]:
        sources, c = x.shape[1], x.shape[-1]
        by_process = x.view(sources, self.processes, self.hosted, c).transpose(0, 1).contiguous()
        received = torch.empty_like(by_process)  # [process, its members, ours, c]
        work = dist.all_to_all_single(
            received.view(-1), by_process.view(-1), group=self.group, async_op=True
        )
        return self._started(work, received).then(
            lambda chunks: chunks.permute(2, 0, 1, 3).reshape(1, self.hosted, self.members, c)
        )

    def send(self, x: Tensor, to: Sequence[int]) -> Pending[Tensor]:
        received, mine, m = torch.empty_like(x), self.group.rank(), self.hosted
        calls = []
        # Between two processes, messages are matched in the order of the members that send them.
        for source, target in enumerate(to):
            (here, row), (there, place) = divmod(source, m), divmod(target, m)
            if here == there == mine:
                received[0, place] = x[0, row]
            elif here == mine:
                sent = x[0, row].contiguous()
                calls.append(dist.P2POp(dist.isend, sent, group=self.group, group_peer=there))
            elif there == mine:
                arriving = received[0, place]
                calls.append(dist.P2POp(dist.irecv, arriving, group=self.group, group_peer=here))
        return self._sent(dist.batch_isend_irecv(calls) if calls else [], received)

    def broadcast(self, x: Tensor) -> Pending[Tensor]:
        """Overwrites `x` with that of the first process."""
        work = dist.broadcast(x, group_src=0, group=self.group, async_op=True)
        return self._started(work, x)

    def gather_into(self, out: Tensor, x: Tensor) -> Pending[Tensor]:
        """Writes `x [c]` of each of the P processes into `out`, `[P, c]` in any shape."""
        rows = out.view(self.processes, -1)
        if x.device.type != "cpu" or x.nbytes < DIRECT:
            work = _all_gather(rows.view(-1), x, group=self.group, async_op=True)
            return self._started(work, out)
        rank = self.group.rank()
        rows[rank] = x
        works = []
        for distance in range(1, self.processes):  # at once, in an order that spreads the load
            to, source = (rank + distance) % self.processes, (rank - distance) % self.processes
            works += [
                dist.isend(x, group=self.group, group_dst=to),
                dist.irecv(rows[source], group=self.group, group_src=source),
            ]
        return self._sent([work for work in works if work is not None], out)

    def _started(self, work: dist.Work | None, result: Tensor) -> Pending[Tensor]:
        if work is None:
            return Pending.done(result)
        wait: Callable[[], object] = work.wait
        # On a GPU a wait doesn't block the program, but one with a time limit would.
        if self.presence is not None and result.device.type == "cpu":
            wait = partial(self.presence.wait, work, self.presence.event, self.group)

        def finish() -> Tensor:
            wait()
            return result

        return Pending(finish)

    def _sent(self, works: Sequence[dist.Work], result: Tensor) -> Pending[Tensor]:
        presence = self.presence
        begin = partial(presence.begins, presence.event, self.group) if presence else None

        def finish() -> Tensor:
            if begin is not None:
                begin()
            for work in works:
                work.wait()
            return result

        return Pending(finish)


@dataclass(frozen=True)
class Sliced:
    """Blocks whose processes hold equal copies of a member, and each send one slice of it.

    The processes of a block hold the same anchor (g = m = 1). Process j of each block joins the
    collective of the j-th slice across blocks, then the block gathers the slices. So a block sends
    an anchor once, not once for each of its processes.

    Args:
        across: joins the processes with the same index in their blocks.
        inside: joins the processes of this block.
        ahead: runs the second stage in the background, if `inside` is used for nothing else;
            without it, the wait runs it.
    """

    across: Collective
    inside: ProcessGroup
    ahead: Ahead | None = None

    @property
    def members(self) -> int:
        return self.across.members

    def _slice(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.inside.processes, -1))[..., self.inside.group.rank(), :]

    def _assemble(self, part: Tensor) -> Tensor:
        """Gathers slices `[..., c / p]` of the block's p processes into `[..., c]`."""
        whole = self.inside.gather(part.reshape(1, 1, -1)).wait()
        return whole.view(self.inside.processes, *part.shape).movedim(0, -2).flatten(-2)

    def sum(self, x: Tensor) -> Pending[Tensor]:
        padded = _pad(x, self.inside.processes)
        pending = self.across.sum(self._slice(padded))

        def finish() -> Tensor:
            total, whole = x[:, 0], padded[:, 0]
            mine, slices = pending.wait().reshape(-1), whole.view(self.inside.processes, -1)
            self.inside.gather_into(slices, mine).wait()
            return total if padded is x else total.copy_(whole[..., : x.shape[-1]])

        return _staged(finish, self.ahead)

    def gather(self, x: Tensor) -> Pending[Tensor]:
        padded = _pad(x, self.inside.processes)
        c = x.shape[-1]
        pending = self.across.gather(self._slice(padded))
        return _staged(lambda: self._assemble(pending.wait())[..., :c], self.ahead)

    def exchange(self, x: Tensor) -> Pending[Tensor]:
        padded = _pad(x, self.inside.processes)
        c = x.shape[-1]
        pending = self.across.exchange(self._slice(padded).contiguous())
        return _staged(lambda: self._assemble(pending.wait())[..., :c], self.ahead)

    def send(self, x: Tensor, to: Sequence[int]) -> Pending[Tensor]:
        padded = _pad(x, self.inside.processes)
        c = x.shape[-1]
        pending = cast(Sending, self.across).send(self._slice(padded).contiguous(), to)
        return _staged(lambda: self._assemble(pending.wait())[..., :c], self.ahead)


@dataclass(frozen=True)
class Leaders:
    """Blocks of unequal size, whose first process communicates and then broadcasts the result.

    Args:
        across: joins the first processes of the blocks; `None` on all others.
        inside: joins the processes of this block.
        blocks: the number of blocks.
        ahead: as in `Sliced`.
    """

    across: ProcessGroup | None
    inside: ProcessGroup
    blocks: int
    ahead: Ahead | None = None

    @property
    def members(self) -> int:
        return self.blocks

    def _broadcast(self, pending: Pending[Tensor]) -> Pending[Tensor]:
        return _staged(lambda: self.inside.broadcast(pending.wait()).wait(), self.ahead)

    def sum(self, x: Tensor) -> Pending[Tensor]:
        pending = self.across.sum(x) if self.across else Pending.done(x[:, 0])
        return self._broadcast(pending)

    def gather(self, x: Tensor) -> Pending[Tensor]:
        if self.across:
            pending = self.across.gather(x)
        else:
            pending = Pending.done(x.new_empty((1, self.blocks, x.shape[-1])))
        return self._broadcast(pending)

    def exchange(self, x: Tensor) -> Pending[Tensor]:
        pending = self.across.exchange(x) if self.across else Pending.done(torch.empty_like(x))
        return self._broadcast(pending)

    def send(self, x: Tensor, to: Sequence[int]) -> Pending[Tensor]:
        pending = self.across.send(x, to) if self.across else Pending.done(torch.empty_like(x))
        return self._broadcast(pending)


def _staged(finish: Callable[[], Tensor], ahead: Ahead | None) -> Pending[Tensor]:
    return Pending(finish) if ahead is None else ahead.start(finish)


def _pad(x: Tensor, multiple: int) -> Tensor:
    missing = -x.shape[-1] % multiple
    return torch.nn.functional.pad(x, (0, missing)) if missing else x
