"""Workers of several ranks, over which a model is sharded or cut into stages.

Inside a worker PyTorch does what it does without local SGD: FSDP2, tensor parallelism, pipelines.
Across workers `LocalSGD` averages the shards that a rank has with those of its peers. What would
communicate across workers at every step, or let the ranks of a worker part, is refused.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from localsgd.averaging.grid import SINGLE, Grid
from localsgd.averaging.placement import Placement
from localsgd.basics.messages import read_messages
from localsgd.errors import UserError
from localsgd.reduce.compressor import scale_dtype
from localsgd.rows.model_rows import Row
from localsgd.rows.shards import (
    cut_along,
    cut_twice_unevenly,
    fsdp_modules,
    is_sharded,
    ranks_of,
)
from localsgd.wire.presence import Event, Presence, named

KNOWS_UNEVEN_CUTS = "2.13"
"""The PyTorch whose `full_tensor()` is right for what `cut_twice_unevenly`; 2.9's is wrong."""


def peers_of(topology: Any, processes: int) -> list[int]:
    """The ranks that average with this one: those of a mesh that has not all of them, or all."""
    if isinstance(topology, DeviceMesh) and topology.mesh.numel() < processes:
        return topology.mesh.flatten().tolist()
    return list(range(processes))


def check_axes(topology: Any, model: nn.Module) -> None:
    """Refuses a topology whose mesh has an axis inside workers, along which shards are cut."""
    if not isinstance(topology, DeviceMesh) or not isinstance(model, nn.Module):
        return
    given = topology.mesh_dim_names or ()
    for name, parameter in model.named_parameters():
        if inside := [axis for axis in given if axis in cut_along(parameter)]:
            rest = [axis for axis in given if axis not in inside] or ["replicate"]
            across = ", ".join(f'"{axis}"' for axis in rest)
            raise UserError(
                f'topology has the axis "{inside[0]}" of the mesh, along which {name} is sharded '
                f"inside workers; give the axes across workers alone: topology=mesh[{across}]"
            )


def check_wrappers(model: nn.Module, wrapped_in_ddp: bool) -> None:
    """Refuses wrappers that would average over all ranks, or hide the shards."""
    if any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules()):
        raise UserError(
            "the model is in FullyShardedDataParallel (FSDP1), whose flat parameters can't be "
            'averaged shard by shard; use fully_shard(model, mesh=mesh["shard"]) of '
            "torch.distributed.fsdp"
        )
    if wrapped_in_ddp and any(map(is_sharded, model.parameters())):
        raise UserError(
            "the model is sharded and in DistributedDataParallel, which would average over all "
            "ranks of its group; give LocalSGD the sharded model alone, as it averages gradients "
            "itself while H = 1"
        )


def check_shards(model: nn.Module, rows: Sequence[Row], worker: Sequence[int]) -> None:
    """Refuses parameters that several workers share, that ranks of one worker train apart, or that
    PyTorch would gather wrong.

    Args:
        worker: the ranks of this worker.
    """
    synchronised = [
        (slot.name, parameter)
        for row in rows
        for slot, parameter in zip(row.layout.slots, row.parameters, strict=True)
    ]
    for name, parameter in itertools.chain(synchronised, model.named_parameters()):
        if not set(ranks_of(parameter)) <= set(worker):
            raise UserError(
                f"{name} is shared by ranks {ranks_of(parameter)}, and this worker is "
                f"{named(worker)}: FSDP on a 2-D mesh (HSDP), or no topology, averages over all at "
                'every step; give fully_shard mesh=mesh["shard"] and LocalSGD '
                'topology=mesh["replicate"]'
            )
    if len(worker) == 1 or not fsdp_modules(model):
        return
    for name, parameter in synchronised:
        if torch.__version__ < KNOWS_UNEVEN_CUTS and cut_twice_unevenly(parameter):
            raise UserError(
                f"{name} {tuple(parameter.shape)} is cut unevenly by FSDP after tensor "
                f"parallelism, and torch {torch.__version__} gathers and saves such a tensor in a "
                f"wrong order; use torch {KNOWS_UNEVEN_CUTS} or newer, or a length that all ranks "
                "of a worker divide evenly"
            )
        if not is_sharded(parameter):
            raise UserError(
                f"{name} trains and is in no fully_shard (or in its ignored_params), so that the "
                "ranks of a worker would train it apart; apply fully_shard to the whole model too, "
                "or freeze that parameter"
            )


def check_backends(rows: Sequence[Row]) -> None:
    """Refuses parameters in memory that no backend of `torch.distributed` reaches."""
    if not dist.is_initialized():
        return
    reached = {part.partition(":")[0] for part in dist.get_backend_config().split(",")}
    for row in rows:
        if (device := row.values.device.type) not in reached:
            raise UserError(
                f"{row.layout.slots[0].name} is on {device} (as CPUOffloadPolicy puts it), and "
                f"torch.distributed was initialised for {', '.join(sorted(reached))} alone; call "
                'init_process_group("cpu:gloo,cuda:nccl")'
            )


class Fsdp:
    """The modules of a model to which `fully_shard` was applied; often there are none."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = fsdp_modules(model)

    def reshard(self) -> None:
        """Lets FSDP forget what it has gathered, as shards change."""
        for module in self._modules:
            module.reshard()

    def check_some_gradient(self, rows: Sequence[Row]) -> None:
        """Refuses a step without any gradient."""
        if self._modules and all(p.grad is None for row in rows for p in row.parameters):
            raise UserError(
                "no parameter has a gradient: set_requires_gradient_sync(False) keeps FSDP from "
                "making any, and the optimizer would do nothing; leave it out, as on "
                'mesh["shard"] nothing crosses to other workers in a local phase, or set it True '
                "before the last backward pass of a step"
            )


def met(presence: Presence | None, peers: Sequence[int]) -> Grid:
    """Holds the first meeting; returns the ranks of all workers, by what each says of itself."""
    if presence is None:
        return SINGLE
    details = presence.open(Event("LocalSGD()", 0, by_hand=True), json.dumps(peers))
    presence.peers = peers
    return Grid.of_peers(read_messages(details, list[int]))


class Agreement:
    """What the ranks of a worker find out together, as each sees its own shard or stage alone.

    Args:
        placement: which knows them.
        rows: of this rank.

    Attributes:
        position: the place of this rank in its worker, from 0.
        positions: the number of ranks of a worker.
    """

    def __init__(self, placement: Placement, rows: Sequence[Row]) -> None:
        self._worker = placement.worker
        self._rows = rows
        self._ranks = placement.grid.worker(placement.process)
        self.position = placement.grid.position(placement.process)
        self.positions = len(placement.grid.ranks)

    @property
    def alone(self) -> bool:
        """Whether this rank is the whole worker."""
        return self._worker is None

    def any(self, found: Tensor) -> Tensor:
        """Whether it is so on any rank of the worker: a scalar tensor like `found`."""
        if self._worker is None:
            return found
        count = found.to(torch.float32, copy=True).view(1, 1, 1)
        return self._worker.sum(count).wait().view(()) > 0

    def gathered(self, tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """The tensors of each rank of the worker, at position 0; nothing elsewhere.

        They travel as safetensors, one rank after the other, so that no message chooses code.
        """
        from safetensors.torch import load, save

        if self._worker is None:
            return [tensors]
        device = self._rows[0].values.device
        own = torch.frombuffer(bytearray(save(tensors)), dtype=torch.uint8).to(device)
        length = torch.tensor([[[len(own)]]], device=device)
        lengths = self._worker.gather(length).wait()[0, :, 0].tolist()
        if self.position:
            dist.send(own, self._ranks[0], group=self._worker.group)
            return []
        found = [tensors]
        for rank, size in zip(self._ranks[1:], lengths[1:], strict=True):
            theirs = own.new_empty(size)
            dist.recv(theirs, rank, group=self._worker.group)
            found.append(load(theirs.cpu().numpy().tobytes()))
        return found

    @property
    def of_stages(self) -> bool:
        """Whether some ranks of the worker share no tensor with this one."""
        seen = {rank for row in self._rows for p in row.parameters for rank in ranks_of(p)}
        return self._worker is not None and not seen.issuperset(self._ranks)

    def check_scaler(self) -> None:
        """Refuses a `GradScaler` that sees the overflows of a part of the worker alone."""
        if self.of_stages:
            raise UserError(
                f"a GradScaler on rank {dist.get_rank()} learns of no overflow on others of "
                f"{named(sorted(self._ranks))}, which are one worker, so that their scales would "
                "part; train stages of a model in bfloat16, without a scaler"
            )

    @torch.no_grad()
    def spread_not_finite(self, rows: bool) -> bool:
        """Where some weights of a worker are not finite, all its rows become NaN, on all its ranks,
        so that it is left out of the mean as a whole.

        Args:
            rows: whether rows of a worker of one rank are spread to as well: where a worker can be
                left out of the means of all of them.

        Returns:
            Whether all weights of the worker are known to be finite. Rows of a worker of one
            rank that are not spread to have not been looked at: their levels do that.
        """
        if self._worker is None and (len(self._rows) == 1 or not rows):
            return False
        sums = [row.values.sum(dtype=scale_dtype(row.values.dtype)) for row in self._rows]
        found = self.any(~torch.stack([one.isfinite().to(sums[0].device) for one in sums]).all())
        if found.device.type == "cpu" and not bool(found):  # A GPU is not asked.
            return True
        for row in self._rows:
            row.values.masked_fill_(found.to(row.values.device), torch.nan)
        return False
