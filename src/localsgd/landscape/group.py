"""Support for several processes: batches are divided, and each result is one sum."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def rank_and_size(group: ProcessGroup | None) -> tuple[int, int]:
    """Rank and number of processes of the group; (0, 1) without one."""
    if group is None:
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def summed(values: Tensor, group: ProcessGroup | None) -> Tensor:
    """Sums `values` over the group, in place."""
    if group is not None:
        dist.all_reduce(values, group=group)
    return values
