"""Controls what a model in `DistributedDataParallel` sends, and when.

DDP would broadcast buffers before every forward pass and average gradients after every backward
pass. The first is switched off. The second happens while levels average after every step, through a
hook that averages DDP's buckets over just these levels during the backward pass; otherwise DDP's
synchronisation is off, and nothing is sent.
"""

# No `from __future__ import annotations`: DDP compares the hook's annotations with types.

import gc
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from localsgd.averaging.level import Averaging, Level, average_and_share
from localsgd.errors import UserError
from localsgd.optimizer.consistency import SameBatch
from localsgd.optimizer.gradient_packs import MakeLevels
from localsgd.optimizer.join import refuse_join
from localsgd.optimizer.not_finite import seen_not_finite


def unwrapped(model: nn.Module) -> tuple[nn.Module, DistributedDataParallel | None]:
    """The user's own module inside `torch.compile` and DDP, and the DDP module, if any."""
    ddp = None
    while True:
        if isinstance(model, DistributedDataParallel):
            ddp, model = model, model.module
        elif isinstance(compiled := getattr(model, "_orig_mod", None), nn.Module):
            model = compiled
        else:
            return model, ddp


def averaging_behind(
    parameters: Iterable[Tensor], known: DistributedDataParallel | None
) -> str | None:
    """A message that says what to do if a DDP other than `known` has one of the parameters.

    All objects of the process are searched, since a module doesn't know its wrappers.
    """
    ours = set(map(id, parameters))
    for found in gc.get_objects():
        if not issubclass(type(found), DistributedDataParallel) or found is known:
            continue
        if any(id(p) in ours for p in found.parameters()):
            return (
                "the model trains in a DistributedDataParallel that LocalSGD was not given: it has "
                "averaged gradients over all ranks, and would at every step; wrap the model before "
                "LocalSGD is made, and give LocalSGD the wrapped model, not ddp.module"
            )
    return None


Running: TypeAlias = tuple[Future[Tensor], Tensor, Tensor, int, list[Averaging]]
"""A bucket that is being averaged.

The future of its mean, the bucket, the padded bucket, the number of flags in it, and its levels.
"""


class Overlap:
    """Averages DDP's buckets: the innermost level as each is ready, the others after the last.

    The first bucket, which DDP keeps small, also carries this worker's `flags`; their means over
    all workers are left in `carried`.

    Args:
        multiple: buckets are padded to a multiple of this many scalars.

    Attributes:
        named: a context in which the loss of a rank becomes `PeerLost`.
        says: called before gradients of this worker that are not finite are averaged.
    """

    def __init__(self, multiple: int = 1) -> None:
        self.multiple = multiple
        self.make_levels: MakeLevels | None = None
        self.same_batch: SameBatch | None = None
        self.flags: Callable[[], Sequence[float]] | None = None
        self.carried: Tensor | None = None
        self.named: Callable[[], AbstractContextManager[None]] = nullcontext
        self.says: Callable[[], None] = lambda: None
        self.averaged = False
        self._running: list[Running] = []

    def start(self, bucket: Tensor, first: bool) -> Future[Tensor]:
        """Takes a bucket `[n]` of this worker's gradients; the future has their mean."""
        future: Future[Tensor] = Future(devices=[bucket.device] if bucket.is_cuda else [])
        if self.make_levels is None:
            future.set_result(bucket)
            return future
        if self.same_batch is not None:
            self.same_batch.add([bucket])
        if seen_not_finite(bucket):
            self.says()
        n, flags = bucket.numel(), self.flags() if first and self.flags is not None else ()
        missing = len(flags) + -(n + len(flags)) % self.multiple
        padded = nn.functional.pad(bucket, (0, missing)) if missing else bucket
        for index, number in enumerate(flags, n):
            padded[index] = number
        levels = list(self.make_levels(padded))
        if isinstance(levels[0], Level):
            levels[0].begin_average()
        if not self._running:
            # Runs at the end of this backward pass, before DDP's own, which is queued later.
            Variable._execution_engine.queue_callback(self._finish)
        self._running.append((future, bucket, padded, len(flags), levels))
        return future

    def _finish(self) -> None:
        running, self._running = self._running, []
        with self.named():
            self._finish_all(running)

    def _finish_all(self, running: list[Running]) -> None:
        for future, bucket, padded, flags, levels in running:
            if isinstance(levels[0], Level):
                levels[0].finish_average()
            else:
                levels[0].average()
            average_and_share(levels, first=1)
            n = bucket.numel()
            if padded is not bucket:
                bucket.copy_(padded[:n])
            if flags:
                self.carried = padded[n : n + flags].clone()
            future.set_result(bucket)
        self.averaged = True


class Hooked:
    """What DDP's hook is called with.

    DDP's reducer keeps it where Python's garbage collector can't look, so that it must not hold
    what holds the model.

    Args:
        group: DDP's processes; `None` if DDP's reducer does not have the hook.

    Attributes:
        overlap: a weak reference to what averages the buckets.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.overlap: Callable[[], Overlap | None] = lambda: None

    def __reduce__(self) -> tuple[Any, ...]:
        return Hooked, ()  # A copied or loaded DDP has a reducer of its own, without the hook.


def average_bucket(hooked: Hooked, bucket: dist.GradBucket) -> Future[Tensor]:
    """The communication hook of DDP; as DDP itself once the `LocalSGD` is deleted."""
    overlap = hooked.overlap()
    if overlap is None:
        assert hooked.group is not None
        return allreduce_hook(hooked.group, bucket)
    with torch.no_grad(), overlap.named():
        return overlap.start(bucket.buffer(), first=bucket.index() == 0)


class Quiet:
    """Who needs a DDP quiet. Its settings before lie in itself, so that copies of it have them."""

    BEFORE = "_before_localsgd"

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.owners: weakref.WeakSet[Any] = weakref.WeakSet()
        before = (ddp.broadcast_buffers, ddp.require_backward_grad_sync)
        vars(ddp).setdefault(self.BEFORE, before)

    def restore(self, ddp: DistributedDataParallel) -> None:
        ddp.broadcast_buffers, ddp.require_backward_grad_sync = vars(ddp).pop(self.BEFORE)
        vars(ddp).pop("join_hook", None)


_quiet: weakref.WeakKeyDictionary[DistributedDataParallel, Quiet] = weakref.WeakKeyDictionary()


def quieten(ddp: DistributedDataParallel, owner: object) -> None:
    """No buffer crosses, no gradient before somebody switches that on, and nobody joins.

    Args:
        ddp: the model.
        owner: once it and all other owners are gone, the model is as it was before.
    """
    if ddp.static_graph:
        raise UserError(
            "DistributedDataParallel(static_graph=True) can't leave out its synchronisation in a "
            "local phase; make it without static_graph"
        )
    if ddp not in _quiet:
        _quiet[ddp] = Quiet(ddp)
    _quiet[ddp].owners.add(owner)
    weakref.finalize(owner, _wake, weakref.ref(ddp)).atexit = False
    ddp.broadcast_buffers = False
    ddp.require_backward_grad_sync = False
    ddp.join_hook = refuse_join


def _wake(seen: Callable[[], DistributedDataParallel | None]) -> None:
    """Restores a DDP whose last owner is gone."""
    ddp = seen()
    if ddp is None or ddp not in _quiet or any(True for _ in _quiet[ddp].owners):
        return
    _quiet.pop(ddp).restore(ddp)


def overlap_of(ddp: DistributedDataParallel, parameters: set[int], multiple: int) -> Overlap | None:
    """Hooks into DDP's backward pass, if DDP reduces just the optimizer's parameters.

    With several optimizers on one model it reduces more, and the result is `None`.

    Args:
        parameters: ids of the synchronised parameters.
        multiple: buckets are padded to a multiple of this many scalars.
    """
    reduced = {id(p) for p in ddp.parameters() if p.requires_grad}
    if reduced != parameters:
        return None
    overlap = Overlap(multiple)
    hooks = [s for _, s in ddp._comm_hooks if isinstance(s, Hooked) and s.group is not None]
    hooked = hooks[0] if hooks else Hooked(ddp.process_group)
    if not hooks:
        try:
            ddp.register_comm_hook(hooked, average_bucket)
        except RuntimeError as error:
            raise UserError(
                "the DistributedDataParallel model has a communication hook already, and LocalSGD "
                'needs its own to average gradients; leave yours out, or choose average="models"'
            ) from error
    hooked.overlap = weakref.ref(overlap)
    return overlap
