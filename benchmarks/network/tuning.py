"""What a process of the crew does for `planned`: what the plan needs to know."""

from __future__ import annotations

import torch.distributed as dist

from benchmarks.workloads import random_cifar, scalars, shapes_of
from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.cost.allreduce import Link
from localsgd.cost.link import fitted
from localsgd.train.data import models
from localsgd.wire.timing import measured


def link() -> Link:
    """alpha and beta between all processes."""
    collective = placement_of(Topology((dist.get_world_size(),))).world
    return fitted(collective.members, *measured(collective))


def model_scalars(name: str) -> int:
    return scalars(shapes_of(models.build(name, random_cifar(64), seed=0)))
