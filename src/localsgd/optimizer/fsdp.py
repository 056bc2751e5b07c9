"""Averages the gradients of a model under FSDP2 across workers, during its backward pass.

FSDP averages a module's gradients over the ranks of a worker, each of which gets its shard, and
then calls the module's all-reduce hook with it. The hook averages the shard over the peers while
levels average after every step; in a local phase it does nothing, and nothing is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from localsgd.averaging.level import average_and_share
from localsgd.errors import UserError
from localsgd.optimizer.consistency import SameBatch
from localsgd.optimizer.gradient_packs import MakeLevels
from localsgd.optimizer.not_finite import seen_not_finite
from localsgd.rows.model_rows import Row
from localsgd.rows.shards import fsdp_modules, is_sharded, local


class ShardOverlap:
    """What the hooks of all modules share.

    Args:
        multiple: gradients are padded to a multiple of this many scalars.

    Attributes:
        make_levels: makes the levels that average a vector; `None` in a local phase.
        same_batch: adds up what each worker's own gradients are, if not `None`.
        named: a context in which the loss of a rank becomes `PeerLost`.
        says: called before gradients of this worker that are not finite are averaged.
        averaged: whether gradients were averaged since this was last set to `False`.
    """

    def __init__(self, multiple: int = 1) -> None:
        self.multiple = multiple
        self.make_levels: MakeLevels | None = None
        self.same_batch: SameBatch | None = None
        self.named: Callable[[], AbstractContextManager[None]] = nullcontext
        self.says: Callable[[], None] = lambda: None
        self.averaged = False

    def average(self, name: str, whole: int | None, gradients: Tensor) -> None:
        """The hook of a module: averages its `gradients [n]` in place.

        Args:
            name: of the module.
            whole: n, if all its parameters have a gradient, and that is known.
        """
        if self.make_levels is None:
            return
        if whole not in (None, gradients.numel()):
            raise UserError(
                f"{name or 'the model'} has parameters without a gradient, so that FSDP gives "
                "other numbers of gradients on other workers; let the loss use all parameters, "
                'freeze the others, or choose average="models"'
            )
        with torch.no_grad(), self.named():
            if self.same_batch is not None:
                self.same_batch.add([gradients])
            if seen_not_finite(gradients):
                self.says()
            missing = -gradients.numel() % self.multiple
            row = nn.functional.pad(gradients, (0, missing)) if missing else gradients
            average_and_share(self.make_levels(row))
            if missing:
                gradients.copy_(row[: gradients.numel()])
        self.averaged = True


def overlap_of_shards(model: nn.Module, rows: Iterable[Row], multiple: int) -> ShardOverlap | None:
    """Hooks into FSDP's backward pass, if it reduces just the synchronised parameters.

    Otherwise, and where FSDP can't take hooks, the result is `None`.

    Args:
        multiple: gradients are padded to a multiple of this many scalars.
    """
    modules = fsdp_modules(model)
    trainable = {id(p) for m in modules for p in m.parameters() if p.requires_grad}
    if not modules or trainable != {id(p) for row in rows for p in row.parameters}:
        return None
    overlap = ShardOverlap(multiple)
    names = {id(module): name for name, module in model.named_modules()}
    try:
        for group, parameters in _groups(model):
            whole = _scalars(parameters)
            for module in group:
                hook = partial(_average, ref(overlap), names[id(module)], whole)
                module.set_all_reduce_hook(hook)
    except ValueError:  # Some module has parameters on several meshes.
        for module in modules:
            _take_off(module)
        return None
    return overlap


def _average(overlap: ref[ShardOverlap], name: str, whole: int | None, gradients: Tensor) -> None:
    """Nothing once the `LocalSGD` is deleted, which the model must not hold."""
    if (found := overlap()) is not None:
        found.average(name, whole, gradients)


def _take_off(module: Any) -> None:
    try:
        module.set_all_reduce_hook(lambda gradients: None)
    except ValueError:
        return


def _groups(model: nn.Module) -> Iterator[tuple[list[Any], list[nn.Parameter]]]:
    """The modules that FSDP treats as one, and their trainable parameters.

    A module's own are those that are in no `fully_shard` inside it.
    """
    by_state: dict[int, tuple[list[Any], list[nn.Parameter]]] = {}
    seen: set[int] = set()
    for module in reversed(fsdp_modules(model)):  # from inside
        modules, parameters = by_state.setdefault(id(module._get_fsdp_state()), ([], []))
        modules.append(module)
        for parameter in module.parameters():
            if id(parameter) not in seen and parameter.requires_grad:
                parameters.append(parameter)
            seen.add(id(parameter))
    yield from by_state.values()


def _scalars(parameters: Sequence[nn.Parameter]) -> int | None:
    """The scalars in the shards that FSDP pads to equal lengths; `None` if it is not known."""
    total = 0
    for parameter in parameters:
        if not is_sharded(parameter):
            return None
        ranks, memory = parameter.device_mesh.size(), local(parameter)
        if memory.numel() * ranks == parameter.numel():
            total += memory.numel()
        elif parameter.device_mesh.ndim == 1:
            total += -(-parameter.shape[0] // ranks) * math.prod(parameter.shape[1:])
        else:
            return None
    return total
