"""Who trains: DDP as PyTorch's documentation has it, and ways of ours around the same loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from benchmarks.network.accuracy.setting import Setting
from localsgd import LocalSGD, Schedule, every, post_local, warmup
from localsgd.reduce import CompressedMean, Sign
from localsgd.topology import row_multiple
from localsgd.workers.layout import Layout

Wrapped = tuple[nn.Module, Optimizer]
"""The model that is called, and what is stepped in place of its optimizer."""
Wrap = Callable[[nn.Module, Optimizer, Setting], Wrapped]


@dataclass(frozen=True)
class Arm:
    """A way to train.

    Args:
        title: for people, with `{h}` for H.
        wrap: from the model and its plain optimizer to what is called and stepped in their place.
    """

    title: str
    wrap: Wrap

    def named(self, setting: Setting) -> str:
        return self.title.format(h=setting.local_steps)


def _alone(model: nn.Module, inner: Optimizer, setting: Setting) -> Wrapped:
    return model, inner


def _parallel(model: nn.Module) -> DistributedDataParallel:
    # Batch-norm statistics are each worker's own in all arms, so there is no buffer to send.
    return DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)


def _ddp(model: nn.Module, inner: Optimizer, setting: Setting) -> Wrapped:
    return _parallel(model), inner


def _local(model: nn.Module, inner: Optimizer, setting: Setting) -> Wrapped:
    return model, LocalSGD(inner, model, local_steps=setting.local_steps)


def _warmed_up(model: nn.Module, inner: Optimizer, setting: Setting) -> Wrapped:
    parallel = _parallel(model)
    steps = warmup(setting.local_steps, setting.warmed, "constant")
    return parallel, LocalSGD(inner, parallel, local_steps=steps)


def _post_local(model: nn.Module, inner: Optimizer, setting: Setting) -> Wrapped:
    parallel = _parallel(model)
    return parallel, LocalSGD(inner, parallel, local_steps=_switched(setting))


def _signed(schedule: Callable[[Setting], Schedule]) -> Wrap:
    def wrap(model: nn.Module, inner: Optimizer, setting: Setting) -> Wrapped:
        layout = Layout.of(model.named_parameters(), multiple=row_multiple(dist.get_world_size()))
        mean = CompressedMean(Sign(), feedback=True, way="two-phase", layout=layout)
        return model, LocalSGD(inner, model, local_steps=schedule(setting), reducers=[mean])

    return wrap


def _switched(setting: Setting) -> Schedule:
    return post_local(setting.local_steps, after=setting.switch)


BOUND, DDP = "none", "ddp"
LOCAL, WARMED_UP = "local", "local-warmed-up"
POST_LOCAL, SIGNED = "post-local", "post-local-sign"
TRAINED = (DDP, LOCAL, WARMED_UP, POST_LOCAL, SIGNED)
"""Who can be trained to the end, in the order of the tables."""
USUAL = (DDP, WARMED_UP, POST_LOCAL, SIGNED)
"""Who is, where nobody is named."""
FIRST, SECOND = "sign-first", "sign-second"
"""The two phases of `SIGNED`, each on its own."""

PACE = (BOUND, DDP)
SLOW = (BOUND, DDP, FIRST, SECOND)
"""Who takes turns to tell DDP's share, and the time of a step on a very slow link."""

ARMS: dict[str, Arm] = {
    BOUND: Arm("no communication", _alone),
    DDP: Arm("DDP", _ddp),
    LOCAL: Arm("local SGD, H = {h}", _local),
    WARMED_UP: Arm("local SGD, H = {h} after a warm-up", _warmed_up),
    POST_LOCAL: Arm("post-local SGD, H = {h}", _post_local),
    SIGNED: Arm("post-local SGD, EF-sign, H = {h}", _signed(_switched)),
    FIRST: Arm("EF-sign, H = 1", _signed(lambda setting: every(1))),
    SECOND: Arm("EF-sign, H = {h}", _signed(lambda setting: every(setting.local_steps))),
}
