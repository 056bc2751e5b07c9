"""Workers that come and go, by torchft: its lighthouse says who is there, its `Manager` joins them.

    optimizer = LocalSGD(inner, model, local_steps=8, fault_tolerance=Managed())

under `localsgd run --fault-tolerant script.py`, or with a manager of one's own:

    manager = torchft.Manager(pg=ProcessGroupGloo(...), use_async_quorum=False, ...)
    optimizer = LocalSGD(inner, model, local_steps=8, fault_tolerance=Managed(manager))

Each worker is a replica group of its own. torchft brings quorum, time limits, process groups that
are made anew, and the transfer of state to a worker that is behind; what a sync does is ours.

`torchft.Manager` offers one collective, `allreduce`, which goes on with what is left of a tensor if
it fails. Syncs need gathers, exchanges and broadcasts too, and to know of a failure at once. So
this calls the manager's process group itself (`_pg`), and tells the manager of errors. Beside it,
only a few of its private settings are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    BroadcastOptions,
    ReduceOp,
)

from localsgd.errors import PeerLost, UserError
from localsgd.integrations.joining import Joining, own_name
from localsgd.wire.broken import first_line
from localsgd.wire.engine import Broken, Momenta

if TYPE_CHECKING:
    from torchft import Manager

KEY = "localsgd"
"""Under which the manager carries our state."""


class GroupPeers:
    """The workers of one quorum.

    Args:
        group: a process group of torchft.
        rank, size: as in `Peers`; torchft's group says 0 for every rank.
    """

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self._group = group
        self.rank = rank
        self.size = size

    def sum(self, x: Tensor) -> None:
        options = AllreduceOptions()
        options.reduceOp = ReduceOp.SUM  # type: ignore[assignment]
        with _broken():
            self._group.allreduce([x], options).wait()

    def gather(self, x: Tensor) -> Tensor:
        out = x.new_empty((self.size, x.numel()))
        with _broken():
            self._group.allgather_into_tensor_coalesced(
                [out.view(-1)], [x.view(-1)], AllgatherOptions()
            ).wait()
        return out

    def share(self, x: Tensor, source: int) -> None:
        if not x.numel():
            return
        options = BroadcastOptions()
        options.rootRank = source
        with _broken():
            self._group.broadcast([x.view(-1).view(torch.uint8)], options).wait()

    def swap(self, sent: dict[int, Tensor], received: dict[int, Tensor]) -> None:
        with _broken():
            works = [self._group.send([x], rank, 0) for rank, x in sent.items()]
            works += [self._group.recv([x], rank, 0) for rank, x in received.items()]
            for work in works:
                work.wait()


@contextmanager
def _broken() -> Generator[None]:
    """What a process group raises means that somebody has gone."""
    try:
        yield
    except RuntimeError as error:
        raise Broken(first_line(error)) from error


class Managed:
    """A `torchft.Manager`, for `LocalSGD(fault_tolerance=...)`.

    Args:
        manager: made with `use_async_quorum=False`, one for each worker (`rank=0`, `world_size=1`).
            Its process group's `timeout` bounds each collective, and its `quorum_timeout` must
            outlast the longest round of the slowest worker. `load_state_dict` and `state_dict`, if
            given, carry what is the user's own to a worker that joins. If not given, it is made
            from the environment (`integrations/joining.py`).
        workers: K as planned: schedules and `membership.step` count the batches of all workers in
            steps of so many. That of the environment (LOCALSGD_WORKERS) or else of the first sync
            if not given.
        momenta: a worker that joins begins with the inner optimizer's state of one that is there
            (`"copy"`, as torchft does), or without any (`"zero"`). All must say the same.

    Raises:
        UserError: the manager can't do this.
    """

    def __init__(
        self,
        manager: Manager | None = None,
        *,
        workers: int | None = None,
        momenta: Momenta = "copy",
    ) -> None:
        if momenta not in get_args(Momenta):
            raise UserError(f'momenta={momenta!r} is unknown; there are "copy" and "zero"')
        if workers is not None and (type(workers) is not int or workers < 1):
            raise UserError(f"workers={workers!r} is no number of workers; give 1 or more")
        self._joining: Joining | None = None
        if manager is None:
            self._joining = Joining.of(os.environ)
            manager = self._joining.manager
            workers = workers or self._joining.workers
        if getattr(manager, "_use_async_quorum", False):
            raise UserError(
                "the manager asks for its quorum during the step, and a sync needs it before; make "
                "it by torchft.Manager(use_async_quorum=False, ...)"
            )
        if getattr(manager, "_group_world_size", 1) != 1:
            raise UserError(
                f"the manager's replica group has {manager._group_world_size} workers; each worker "
                "must be a replica group of its own, made with rank=0 and world_size=1"
            )
        self.manager = manager
        self.workers = workers
        self.momenta: Momenta = momenta
        given = getattr(manager, "_replica_id", None)
        self.name = given or own_name()
        self._kept = False
        self.begins = self._joining is None or not self._joining.again

    @property
    def syncs(self) -> int:
        return self.manager.current_step()

    def keep(self, save: Callable[[], Any], load: Callable[[Any], None]) -> None:
        if self._kept:
            raise UserError(
                "this manager serves another LocalSGD already, whose syncs it counts; make a "
                "manager of its own for each"
            )
        self._kept = True
        self.manager.register_state_dict_fn(KEY, load, save)

    def meet(self) -> GroupPeers:
        manager = self.manager
        try:
            manager.start_quorum()
        except UserError:  # of this worker's own `load`
            raise
        except Exception as error:  # torchft raises what its server says, as several kinds
            raise PeerLost(
                f"the lighthouse of torchft has not said within {_limit(manager)} who is there "
                f"({first_line(error)}); the model is as it was before the sync: save it, and "
                "start again once there is a lighthouse, and as many workers as it asks for"
            ) from error
        if (failed := manager.errored()) is not None:
            raise Broken(first_line(failed.original_exception))
        rank = manager.participating_rank()
        if rank is None:
            raise Broken("this worker is no part of the quorum")
        size = manager.num_participants()
        if manager._pg.size() != size:  # A new lighthouse has numbered its quorum like the last's.
            raise Broken("the process group is of another quorum")
        return GroupPeers(manager._pg, rank, size)

    def settle(self, failure: Exception | None) -> bool:
        manager = self.manager
        if failure is not None:
            manager.report_error(failure)
            with suppress(Exception):  # Others learn of it, as their connections end.
                manager._pg.abort()
        try:
            counts = manager.should_commit()
        except UserError:  # of this worker's own `load`, which may be called here
            raise
        except Exception as error:
            raise PeerLost(
                f"torchft's own server has not answered ({first_line(error)}); start this worker "
                "again, so that it joins the others"
            ) from error
        if counts and self._joining is not None:
            self._joining.joined()
        return counts

    def leave(self) -> None:
        with suppress(Exception):
            self.manager.shutdown(wait=False)

    def state(self) -> dict[str, Any]:
        return dict(self.manager.state_dict())

    def load(self, state: dict[str, Any]) -> None:
        self.manager.load_state_dict(state)


def _limit(manager: Manager) -> str:
    limit: timedelta = manager._quorum_timeout
    return f"{limit.total_seconds():.0f} s"
