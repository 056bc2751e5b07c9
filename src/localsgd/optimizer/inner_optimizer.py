"""Refuses inner optimizers that communicate, and notices steps that `LocalSGD` did not take."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.optimizer.wrapping import called_by

COMMUNICATING = (
    "torch.distributed.optim.zero_",
    "torch.distributed.optim.post_",
    "apex.contrib.optimizers.distributed_",
    "deepspeed.runtime.",
    "fairscale.optim.oss",
    "fairscale.optim.adascale",
    "hivemind.",
    "horovod.",
    "torchft.",
)
"""Prefixes of modules whose optimizers exchange gradients, parameters or state at every step."""


def check_inner(inner: Optimizer, model: nn.Module) -> None:
    """Refuses what is no optimizer of a model, and one that communicates by any part of it."""
    if not isinstance(inner, Optimizer) or not isinstance(model, nn.Module):
        raise UserError(
            f"LocalSGD takes an optimizer and its model, not {type(inner).__name__} and "
            f"{type(model).__name__}"
        )
    found = [inner]
    for optimizer in found:  # The list grows during the loop.
        if _communicates(optimizer):
            raise _refusal(type(optimizer).__name__)
        held = (value for value in vars(optimizer).values() if isinstance(value, Optimizer))
        found += [each for each in held if not any(each is known for known in found)]


def _communicates(optimizer: Optimizer) -> bool:
    homes = (f"{kind.__module__}." for kind in type(optimizer).__mro__)
    held = [*vars(optimizer).values(), *(v for g in optimizer.param_groups for v in g.values())]
    return (
        any(home.startswith(COMMUNICATING) for home in homes)
        or hasattr(optimizer, "_allreduce_grad_async")  # Horovod's, a class made on the spot.
        or any(isinstance(value, dist.ProcessGroup | DeviceMesh) for value in held)
    )


def _refusal(name: str) -> UserError:
    return UserError(
        f"the inner optimizer is a {name}, which communicates at every step, even if ranks should "
        "train on their own; give LocalSGD the plain optimizer inside it (torch.optim.SGD, AdamW, "
        "...), as LocalSGD does all the communication"
    )


class _Silent(TorchDispatchMode):
    """Refuses collectives before they start."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            raise _refusal(self._name)
        return func(*args, **(kwargs or {}))


class InnerSteps:
    """Tells steps that `LocalSGD` takes from those that the user's code takes directly.

    Args:
        inner: the inner optimizer.
        workers: K; with one nothing can go wrong.
        rank: of this process; the first one warns.
        alone: whether this rank is the whole worker; otherwise ranks of a worker may communicate.
    """

    def __init__(self, inner: Optimizer, workers: int, rank: int, alone: bool = True) -> None:
        self.strays = 0
        self._inner = inner
        self._rank = rank
        self._own = False
        self._looked = workers == 1 or not alone
        if before := _watching.pop(inner, None):
            before.remove()  # Of a LocalSGD that was made of the same optimizer before.
        if workers > 1 and hasattr(inner, "_optimizer_step_pre_hooks"):
            _watching[inner] = inner.register_step_pre_hook(self._begins)

    @contextmanager
    def own(self) -> Generator[None]:
        """A context in which steps of the inner optimizer are taken by `LocalSGD`."""
        self._own = True
        try:
            yield
        finally:
            self._own = False

    def step(self) -> Any:
        """Takes a step without a closure. The first one is refused if it communicates."""
        if self._looked:
            return self._inner.step()
        self._looked = True
        if self._has_hooks():  # They may communicate.
            return self._inner.step()
        with _Silent(type(self._inner).__name__):
            return self._inner.step()

    def _has_hooks(self) -> bool:
        inner = self._inner
        own = len(getattr(inner, "_optimizer_step_pre_hooks", ())) > (inner in _watching)
        after = getattr(inner, "_optimizer_step_post_hooks", ())
        return bool(own or after or _global_optimizer_pre_hooks or _global_optimizer_post_hooks)

    def _begins(self, *_: Any) -> None:
        if self._own or all(group.get("lr", 1) == 0 for group in self._inner.param_groups):
            return  # Tools create the state by a step at a learning rate of 0.
        self.strays += 1
        if self.strays == 1 and self._rank == 0:
            warnings.warn(
                "step() of the inner optimizer was called directly; LocalSGD doesn't see such "
                "steps, so they never lead to a sync; call step() of the LocalSGD, and give it to "
                "GradScaler and learning-rate schedulers too",
                stacklevel=2,
            )

    def check_finish(self, steps: int) -> None:
        """Refuses to finish if all steps were taken without `LocalSGD`."""
        if self.strays and not steps:
            raise UserError(
                f"finish() was called after {plural(self.strays, 'step')} of the inner optimizer "
                "and none of LocalSGD, so that ranks have never been averaged; call step() of the "
                "LocalSGD"
            )


_watching: WeakKeyDictionary[Optimizer, RemovableHandle] = WeakKeyDictionary()
"""Its values hold no optimizer, which would stay for ever."""


def makes_state(inner: Optimizer) -> bool:
    """Whether this step only creates the optimizer's state for `torch.distributed.checkpoint`.

    Its learning rates and gradients are 0, and it is no step of training.
    """
    if any(group.get("lr", 1) != 0 for group in inner.param_groups):
        return False
    return called_by("_init_optim_state")


def learning_rate_of(inner: Optimizer, needed: bool) -> float:
    """The learning rate γ; 0 if the inner optimizer has none and none is needed."""
    rate = inner.param_groups[0].get("lr", 1.0)
    if rate is not None:
        return float(rate)
    if needed:
        raise UserError(
            "the inner optimizer's learning rate is None, but a schedule or an outer optimizer "
            "needs it; give the inner optimizer a rate, or choose others that don't need it, such "
            "as post_local(H, after=...) and outer.sgd(...)"
        )
    return 0.0
