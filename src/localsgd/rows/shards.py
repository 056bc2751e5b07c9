"""Tensors of which this rank has a shard: `DTensor`, as FSDP2 and tensor parallelism make them.

Shapes: a shard has the shape of the tensor, but along the axes that it is cut along.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeGuard

from torch import Tensor, nn


def is_sharded(tensor: object) -> TypeGuard[Any]:
    """Whether it is a `DTensor`, even one that every rank has a whole copy of."""
    module = sys.modules.get("torch.distributed.tensor")  # which takes long to import
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The memory of this rank: a `DTensor`'s shard, or the tensor itself."""
    # `to_local()` makes a new tensor, whose memory can't be exchanged for other.
    return tensor._local_tensor if is_sharded(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a `DTensor`, gathered from the ranks that hold it, or the tensor itself."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def cut_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor that all ranks have, sharded as another one is; nothing is sent."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    here = tensor.to(local(like).device)
    return distribute_tensor(here, like.device_mesh, like.placements, src_data_rank=None)


def place_gradient(parameter: Tensor) -> None:
    """Gives a parameter's gradient the placements of the parameter.

    `SequenceParallel` leaves parts of a sum on the ranks (`Partial`), which are no shards. All
    ranks of the worker must call it.
    """
    gradient = parameter.grad
    if not is_sharded(parameter) or not is_sharded(gradient):
        return
    if gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)


def ranks_of(tensor: Tensor) -> list[int]:
    """The ranks that hold a `DTensor`."""
    return tensor.device_mesh.mesh.flatten().tolist() if is_sharded(tensor) else []


def cut_along(tensor: Tensor) -> tuple[int | str, ...]:
    """The axes of the mesh along which ranks hold different shards; none for a plain tensor."""
    if not is_sharded(tensor):
        return ()
    mesh = tensor.device_mesh
    names = mesh.mesh_dim_names or range(mesh.ndim)
    pairs = zip(names, tensor.placements, strict=True)
    return tuple(name for name, placement in pairs if not placement.is_replicate())


def cut_twice_unevenly(tensor: Tensor) -> bool:
    """Whether FSDP has cut, along the same axis and unevenly, what tensor parallelism had cut."""
    if not is_sharded(tensor):
        return False
    ways = [
        (placed.dim, placed.split_factor * tensor.device_mesh.size(axis))
        for axis, placed in enumerate(tensor.placements)
        if hasattr(placed, "split_factor")  # a private class of PyTorch has it
    ]
    return any(tensor.shape[dim] % pieces for dim, pieces in ways)


def described_placement(tensor: Tensor) -> str:
    """How a `DTensor` is placed, in words that are equal on ranks whose shards may be averaged."""
    if not is_sharded(tensor):
        return ""
    return f"{tensor.placements} of {tuple(tensor.shape)} on {tuple(tensor.device_mesh.shape)}"


def fsdp_modules(model: nn.Module) -> list[Any]:
    """The modules to which `fully_shard` was applied."""
    module = sys.modules.get("torch.distributed.fsdp")
    return [m for m in model.modules() if isinstance(m, module.FSDPModule)] if module else []


def reshard(model: nn.Module) -> None:
    """Lets FSDP forget gathered parameters, so that the next pass gathers the shards as they are.

    After a forward pass alone it keeps them, and would go on with values that are old by then.
    """
    for module in fsdp_modules(model):
        module.reshard()


class Padded(NamedTuple):
    """A shard that is shorter than those of other ranks, so that FSDP gathers more than it.

    What follows the shard is dropped by whoever receives it.

    Args:
        scalars: that are gathered.
        known: what FSDP knows of the parameter.
    """

    scalars: int
    known: Any

    def gather_from(self, memory: Tensor) -> None:
        """Lets FSDP gather from `memory`, of so many scalars, which begins with the shard."""
        self.known._sharded_param_data = memory


def padded_shards(model: nn.Module) -> dict[int, Padded]:
    """The padded shards here, by the `id` of the parameter.

    They are missing where FSDP takes other memory all the same: if shards are pinned, or in a
    version of PyTorch that keeps its knowledge elsewhere.
    """
    found = {}
    for module in fsdp_modules(model):
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)  # older versions have one
        if groups is None:
            groups = [getattr(state, "_fsdp_param_group", None)]
        for known in itertools.chain(*(group.fsdp_params for group in groups if group)):
            memory, size = local(known.sharded_param), known.padded_sharded_param_size
            if memory.numel() and memory.shape != size and not known.pin_memory:
                found[id(known.sharded_param)] = Padded(size.numel(), known)
    return found


def renew_references(model: nn.Module, names: Iterable[str]) -> None:
    """Shards have other memory: lets FSDP gather from there.

    FSDP has a reference of its own, and renews it whenever a state was loaded.
    """
    if fsdp_modules(model):
        for owner in {name.rpartition(".")[0] for name in names}:
            model.get_submodule(owner).load_state_dict({}, strict=False)
