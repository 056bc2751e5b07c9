"""Models of the cost of communication: pure functions of numbers.

Nothing here is measured; `wire.Ledger` counts the real traffic.

- `counts`: how often levels average. `equation`: the paper's Eq. comm_cost.
- `allreduce`: ring, tree and recursive halving by alpha and beta. `link`: alpha and beta from
  measured times. `planner`: which H hides a slow network.
- `speedup`: speed-ups of runs, from those of their phases or from the cost of a sync.
"""

from __future__ import annotations

from localsgd.cost.allreduce import ALGORITHMS, Effort, Link, recursive_halving, ring, tree
from localsgd.cost.counts import Syncs, syncs
from localsgd.cost.equation import Cluster
from localsgd.cost.speedup import Clock

__all__ = [
    "ALGORITHMS",
    "Clock",
    "Cluster",
    "Effort",
    "Link",
    "Syncs",
    "recursive_halving",
    "ring",
    "syncs",
    "tree",
]
