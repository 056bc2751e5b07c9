"""What communication costs, modelled: pure functions of numbers. (Measured traffic: `collective`.)

- `counts`: how often levels agree. `cost`: the paper's Eq. comm_cost. `allreduce`: ring, tree and
  recursive halving by alpha and beta. `speedup`: of runs, from that of phases or the price of an
  agreement. `scaling`: operations for each parameter, counted.
- `published`: what the paper measured. `tables`: it and the models side by side.
"""

from __future__ import annotations

from localsgd.traffic.allreduce import ALGORITHMS, Effort, Link, recursive_halving, ring, tree
from localsgd.traffic.cost import Cluster
from localsgd.traffic.counts import Agreements, agreements
from localsgd.traffic.scaling import Size, size_of
from localsgd.traffic.speedup import Clock

__all__ = [
    "ALGORITHMS",
    "Agreements",
    "Clock",
    "Cluster",
    "Effort",
    "Link",
    "Size",
    "agreements",
    "recursive_halving",
    "ring",
    "size_of",
    "tree",
]
