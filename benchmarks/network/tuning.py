"""What a process of the crew does for `planned`: what the plan needs to know."""

from __future__ import annotations

import torch.distributed as dist

from benchmarks.workloads import random_cifar, scalars, shapes_of
from localsgd.tasks import models
from localsgd.topology import Topology, place
from localsgd.traffic.allreduce import Link
from localsgd.traffic.link import fitted, measured


def link() -> Link:
    """alpha and beta between all processes."""
    collective = place(Topology((dist.get_world_size(),))).world
    return fitted(collective.members, *measured(collective))


def model_scalars(name: str) -> int:
    return scalars(shapes_of(models.build(name, random_cifar(64), seed=0)))
