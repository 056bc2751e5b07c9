"""The arms: DDP as in PyTorch's documentation, and `LocalSGD` around the same loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from benchmarks.network.accuracy.setting import Setting
from localsgd import LocalSGD, every, post_local, warmup
from localsgd.averaging.placement import row_multiple
from localsgd.reduce import CompressedMean, Sign
from localsgd.reduce.compressed import Way
from localsgd.rows.layout import Layout
from localsgd.schedule.progress import Schedule

Wrapped = tuple[nn.Module, Optimizer]
"""The model to call, and the optimizer to step."""
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


def _signed(way: Way, schedule: Callable[[Setting], Schedule]) -> Wrap:
    def wrap(model: nn.Module, inner: Optimizer, setting: Setting) -> Wrapped:
        layout = Layout.of(model.named_parameters(), multiple=row_multiple(dist.get_world_size()))
        mean = CompressedMean(Sign(), feedback=True, way=way, layout=layout)
        return model, LocalSGD(inner, model, local_steps=schedule(setting), reducer=[mean])

    return wrap


def _switched(setting: Setting) -> Schedule:
    return post_local(setting.local_steps, after=setting.switch)


BOUND, DDP = "none", "ddp"
LOCAL, WARMED_UP, POST_LOCAL = "local", "local-warmed-up", "post-local"
GATHERED, TWO_PHASE = "post-local-sign-gathered", "post-local-sign"
"""Arms with signs: gathered, with an exact mean; and in two phases, with a compressed mean."""
TRAINED = (DDP, LOCAL, WARMED_UP, POST_LOCAL, GATHERED, TWO_PHASE)
"""Arms that can be trained to the end, in the order of the tables."""
USUAL = (DDP, WARMED_UP, POST_LOCAL, GATHERED)
"""Arms that are trained by default."""
PHASES = {
    GATHERED: ("sign-gathered-first", "sign-gathered-second"),
    TWO_PHASE: ("sign-first", "sign-second"),
}
"""Names of the two phases of each arm with signs, run alone."""

PACE = (BOUND, DDP)
SLOW = (BOUND, DDP, *PHASES[GATHERED], *PHASES[TWO_PHASE])
"""Arms that take turns to measure DDP's share, and the time of a step on a very slow link."""


def _phases(way: Way, signs: str) -> tuple[Arm, Arm]:
    first = _signed(way, lambda setting: every(1))
    second = _signed(way, lambda setting: every(setting.local_steps))
    return Arm(f"{signs}, H = 1", first), Arm(f"{signs}, H = {{h}}", second)


_GATHERED_SIGNS, _TWO_PHASE_SIGNS = "EF-sign, gathered", "EF-sign, two-phase"

ARMS: dict[str, Arm] = {
    BOUND: Arm("no communication", _alone),
    DDP: Arm("DDP", _ddp),
    LOCAL: Arm("local SGD, H = {h}", _local),
    WARMED_UP: Arm("local SGD, H = {h} after a warm-up", _warmed_up),
    POST_LOCAL: Arm("post-local SGD, H = {h}", _post_local),
    GATHERED: Arm(f"post-local SGD, {_GATHERED_SIGNS}, H = {{h}}", _signed("gather", _switched)),
    TWO_PHASE: Arm(
        f"post-local SGD, {_TWO_PHASE_SIGNS}, H = {{h}}", _signed("two-phase", _switched)
    ),
    **dict(zip(PHASES[GATHERED], _phases("gather", _GATHERED_SIGNS), strict=True)),
    **dict(zip(PHASES[TWO_PHASE], _phases("two-phase", _TWO_PHASE_SIGNS), strict=True)),
}
