"""The contestants: ways in which K workers average, each around the same loop.

To add one, write how it wraps a model and its optimizer, and add an entry to `CONTESTANTS`. `table`
runs those that its scenes name.
"""

from __future__ import annotations

import importlib.util
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager,
)
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from benchmarks.network import lighthouse
from localsgd import LocalSGD
from localsgd.averaging.delay import Delay
from localsgd.averaging.placement import row_multiple
from localsgd.reduce import CompressedMean, Sign
from localsgd.rows.layout import Layout

Wrapped = tuple[nn.Module, Any]
"""The model to call, and the optimizer to step."""


@dataclass(frozen=True)
class Contestant:
    """A way to train together.

    Args:
        title: for people.
        wrap: from the model and its plain optimizer; called in every process at once.
        steps: local steps of an act, which holds equally many syncs every time.
        ahead: more steps taken beforehand, so that a sync that overlaps with later steps is
            due after the first of an act, and has the others to overlap with, as it has in
            training; or that the first one, which connects, is over.
        needs: a package beside PyTorch, by the name under which it is both installed and imported.
        ours: whether it is this package's.
    """

    title: str
    wrap: Callable[[nn.Module, Optimizer], Wrapped]
    steps: int = 16
    ahead: int = 0
    needs: str | None = None
    ours: bool = False

    @property
    def missing(self) -> bool:
        return self.needs is not None and importlib.util.find_spec(self.needs) is None

    @property
    def package(self) -> str | None:
        """The third-party package and its installed version, if it needs one."""
        return None if self.needs is None else f"{self.needs} {metadata.version(self.needs)}"


def _alone(model: nn.Module, inner: Optimizer) -> Wrapped:
    return model, inner


class _InStep:
    """An optimizer after whose every step all processes wait for each other, with nothing to say:
    what it costs to synchronise at H = 1 whatever is sent.
    """

    def __init__(self, inner: Optimizer) -> None:
        self._inner = inner

    def zero_grad(self) -> None:
        self._inner.zero_grad()

    def step(self) -> None:
        self._inner.step()
        dist.barrier()


def _in_step(model: nn.Module, inner: Optimizer) -> Wrapped:
    return model, _InStep(inner)


# PyTorch's, as its documentation has them, but for the buffers of batch norm, which rank 0 would
# send to all before every forward pass: others do without.


def _ddp(model: nn.Module, inner: Optimizer) -> Wrapped:
    return DistributedDataParallel(model, broadcast_buffers=False), inner


def _ddp_fp16(model: nn.Module, inner: Optimizer) -> Wrapped:
    parallel = DistributedDataParallel(model, broadcast_buffers=False)
    parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return parallel, inner


def _ddp_power_sgd(model: nn.Module, inner: Optimizer) -> Wrapped:
    # One bucket: the hook chains its sums from one to the next, and over gloo the chains of several
    # buckets may follow one another in another order on each process, which breaks both off.
    parallel = DistributedDataParallel(model, broadcast_buffers=False, bucket_cap_mb=1000)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
    )
    parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return parallel, inner


def _ddp_without_sums(model: nn.Module) -> DistributedDataParallel:
    """Gradients are summed over groups of one process: nothing is sent for them."""
    parallel = DistributedDataParallel(model, broadcast_buffers=False)
    alone, _ = dist.new_subgroups(group_size=1)
    parallel.register_comm_hook(PostLocalSGDState(None, alone, 0), post_localSGD_hook)
    return parallel


def _post_local_sgd(model: nn.Module, inner: Optimizer) -> Wrapped:
    averager = PeriodicModelAverager(period=16)
    return _ddp_without_sums(model), PostLocalSGDOptimizer(inner, averager)


def _hierarchical_averager(model: nn.Module, inner: Optimizer) -> Wrapped:
    sizes = OrderedDict([(2, 2), (16, dist.get_world_size())])
    averager = HierarchicalModelAverager(period_group_size_dict=sizes)
    return _ddp_without_sums(model), PostLocalSGDOptimizer(inner, averager)


# accelerate's.


class _Accelerated:
    """accelerate's `LocalSGD`, a context manager with a step of its own, as an optimizer."""

    def __init__(self, model: nn.Module, inner: Optimizer, local_steps: int) -> None:
        from accelerate import Accelerator
        from accelerate.local_sgd import LocalSGD as TheirLocalSGD

        accelerator = Accelerator(cpu=True)
        self.model, self._inner = accelerator.prepare(model, inner)
        self._local = TheirLocalSGD(accelerator, self.model, local_sgd_steps=local_steps)
        self._local.__enter__()

    def zero_grad(self) -> None:
        self._inner.zero_grad()

    def step(self) -> None:
        self._inner.step()
        self._local.step()


def _accelerate(model: nn.Module, inner: Optimizer) -> Wrapped:
    theirs = _Accelerated(model, inner, 16)
    return theirs.model, theirs


# Ours.


def _ours(**settings: Any) -> Callable[[nn.Module, Optimizer], Wrapped]:
    def wrap(model: nn.Module, inner: Optimizer) -> Wrapped:
        return model, LocalSGD(inner, model, **settings)

    return wrap


def _ours_overlapped(model: nn.Module, inner: Optimizer) -> Wrapped:
    parallel = DistributedDataParallel(model, broadcast_buffers=False)
    return parallel, LocalSGD(inner, parallel, local_steps=1)


def _ours_signed(local_steps: int) -> Callable[[nn.Module, Optimizer], Wrapped]:
    def wrap(model: nn.Module, inner: Optimizer) -> Wrapped:
        layout = Layout.of(model.named_parameters(), multiple=row_multiple(dist.get_world_size()))
        mean = CompressedMean(Sign(), feedback=True, way="two-phase", layout=layout)
        return model, LocalSGD(inner, model, local_steps=local_steps, reducer=[mean])

    return wrap


BOUND, IN_STEP, DDP = "none", "in-step", "ddp"

CONTESTANTS: dict[str, Contestant] = {
    BOUND: Contestant("no communication", _alone, steps=4),
    IN_STEP: Contestant("no communication, a barrier a step", _in_step, steps=2),
    DDP: Contestant("DDP", _ddp, steps=2),
    "ddp-fp16": Contestant("DDP, fp16 hook", _ddp_fp16, steps=2),
    "ddp-power-sgd": Contestant("DDP, PowerSGD hook, rank 2", _ddp_power_sgd, steps=2),
    "post-local": Contestant("PostLocalSGDOptimizer, H = 16", _post_local_sgd),
    "averager": Contestant("HierarchicalModelAverager, 2 and 16", _hierarchical_averager),
    "accelerate": Contestant("accelerate's LocalSGD, H = 16", _accelerate, needs="accelerate"),
    "torchft": Contestant(
        "torchft's LocalSGD, H = 16", lighthouse.local_sgd, ahead=16, needs="torchft"
    ),
    "torchft-diloco": Contestant(
        "torchft's DiLoCo, H = 16", lighthouse.diloco, ahead=16, needs="torchft"
    ),
    "h1": Contestant("localsgd, H = 1 on DDP", _ours_overlapped, steps=2, ours=True),
    "h1-sign": Contestant("localsgd, H = 1, EF-sign", _ours_signed(1), steps=2, ours=True),
    "h1-apart": Contestant(
        "localsgd, H = 1, models", _ours(local_steps=1, average="models"), steps=2, ours=True
    ),
    "h2": Contestant("localsgd, H = 2", _ours(local_steps=2), steps=2, ours=True),
    "h4": Contestant("localsgd, H = 4", _ours(local_steps=4), steps=4, ours=True),
    "h8": Contestant("localsgd, H = 8", _ours(local_steps=8), steps=8, ours=True),
    "h16": Contestant("localsgd, H = 16", _ours(local_steps=16), ours=True),
    "h16-sign": Contestant("localsgd, H = 16, EF-sign", _ours_signed(16), ours=True),
    "h16-delayed": Contestant(
        "localsgd, H = 16, delayed averaging",
        _ours(local_steps=16, delay=Delay(syncs=1)),
        ahead=13,
        ours=True,
    ),
    "hierarchical": Contestant(
        "localsgd, H = 2, Hb = 8 on 2x2", _ours(topology="2x2", local_steps=[2, 8]), ours=True
    ),
}
