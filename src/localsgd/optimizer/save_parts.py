"""What one worker saves, by name.

Everything in the folder stands under its worker, `worker-00002/model/0.weight`: PyTorch takes equal
keys for replicas, and would put together a model of some tensors of one worker and some of another,
without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from localsgd.errors import UserError
from localsgd.optimizer import averaged_file
from localsgd.optimizer.ddp import unwrapped
from localsgd.optimizer.local_sgd import LocalSGD
from localsgd.optimizer.save_source import name_of
from localsgd.rows.shards import is_sharded, place_gradient
from localsgd.saving.tree import as_tensor, pack

ABOUT = "about"
"""The tensor that says, as JSON, what all workers share."""

FORMAT = 1
"""Of what is saved; another one when it changes."""

PARTS = ("model", "optimizers", "objects", "values", "random")
"""Of what a worker saves."""

GRADIENTS = "gradients"
"""A part that is saved only where some wait for further micro-batches."""


def own_parts(model: nn.Module, optimizers: Sequence[LocalSGD], more: Any) -> dict[str, Tensor]:
    """All tensors of this worker, under its name, and what all workers share."""
    averaged_file.check_safetensors()
    module = checked(model, optimizers)
    state = module.state_dict()
    lead = optimizers[0]
    stages = lead.agreement.of_stages
    if stages and any(map(is_sharded, state.values())):
        raise UserError(
            "ranks of a worker hold stages of the model that are sharded as well, and names of "
            "shards don't say of which stage they are; save the state_dict() of each rank's model "
            "and optimizer by torch.save, and load it on the same rank"
        )
    objects = {name: one.state_dict() for name, one in more.items() if has_state(name, one)}
    tree = {
        "model": {"state": state, "versions": getattr(state, "_metadata", None)},
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "objects": objects,
        "values": {name: value for name, value in more.items() if name not in objects},
        "random": random_state(),
    }
    tensors: dict[str, Tensor] = {}
    own = name_of(lead.worker, lead.agreement.position, lead.agreement.positions)
    if any(optimizer.accumulating for optimizer in optimizers):
        named = dict(module.named_parameters())
        for parameter in named.values():
            place_gradient(parameter)
        tree[GRADIENTS] = {name: p.grad for name, p in named.items() if p.grad is not None}
    for part in tree:
        found, text = pack(tree[part], f"{own}/{part}")
        tensors |= found
        tensors[f"{own}/{part}.json"] = as_tensor(text)
    about = {"format": FORMAT, "workers": lead.workers, "steps": lead.steps}
    if lead.agreement.positions > 1:
        about |= {"positions": lead.agreement.positions, "stages": stages}
    return {**tensors, ABOUT: as_tensor(json.dumps(about))}


def averaged_weights(model: nn.Module, optimizers: Sequence[LocalSGD]) -> dict[str, Tensor]:
    """The averaged model, on rank 0 alone."""
    with ExitStack() as stack:
        for optimizer in optimizers:
            stack.enter_context(optimizer.averaged_model())
        if optimizers[0].worker:
            return {}
        found = averaged_file.copied(unwrapped(model)[0].state_dict())
        agreement = optimizers[0].agreement
        if agreement.of_stages:
            return {name: own[name] for own in agreement.gathered(found) for name in own}
        return {} if agreement.position else found


def checked(model: nn.Module, optimizers: Sequence[LocalSGD]) -> nn.Module:
    """The user's own module, which must have all parameters of the optimizers."""
    module, _ = unwrapped(model)
    there = set(map(id, module.parameters()))
    for optimizer in optimizers:
        if not all(id(p) in there for g in optimizer.param_groups for p in g["params"]):
            raise UserError(
                "the model lacks parameters of the optimizer; give the model that LocalSGD was "
                "given, or an nn.ModuleList of those that several were"
            )
    return module


def has_state(name: str, value: Any) -> bool:
    if isinstance(value, LocalSGD):
        raise UserError(f"{name} is a LocalSGD; give all of them as a list: [first, second]")
    return all(callable(getattr(value, call, None)) for call in ("state_dict", "load_state_dict"))


def random_state() -> dict[str, Any]:
    """Torch's random numbers, of the CPU and of this process's GPU."""
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if on_gpu else None,
    }


def check_random(random: Mapping[str, Any]) -> None:
    """Raises for what `set_random` would not take."""
    torch.Generator().set_state(random["cpu"])
    if random["cuda"] is not None and torch.cuda.is_available():
        torch.Generator("cuda").set_state(random["cuda"])


def set_random(random: Mapping[str, Any]) -> None:
    torch.set_rng_state(random["cpu"])
    if random["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(random["cuda"])
