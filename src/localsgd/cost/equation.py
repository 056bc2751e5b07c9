"""The paper's cost of communication, as printed and as a time (Lin et al., 2020, Eq. comm_cost).

K: workers · K': servers, K / K' workers each · C1, C2: an exchange inside a server, across servers
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from localsgd.basics.units import plural
from localsgd.cost.counts import Syncs
from localsgd.errors import UserError


@dataclass(frozen=True)
class Cluster:
    """Servers of equal size, and the cost of one of the log2 exchanges of an all-reduce.

    Args:
        workers: K.
        servers: K', which divides K.
        inside: C1, between workers of a server.
        across: C2, between servers, in the unit of C1, such as seconds.
    """

    workers: int
    servers: int
    inside: float
    across: float

    def __post_init__(self) -> None:
        if self.workers < 1 or self.servers < 1 or self.workers % self.servers:
            raise UserError(
                f"K = {plural(self.workers, 'worker')} can't be spread evenly over K' = "
                f"{self.servers} servers; K' must divide K"
            )
        for name, number in (("C1", self.inside), ("C2", self.across)):
            if not 0 <= number < math.inf:
                raise UserError(f"{name} = {number:g} is out of range; give a number >= 0")


def printed(cluster: Cluster, count: Syncs) -> float:
    """C ~ (ceil(N/KBH) - ceil(N/KBHH^b)) C1 K' log2(K/K') + ceil(N/KBHH^b) C2 log2 K.

    The first term adds up what all servers send; the second is one sync as one participant
    sees it. The sum is neither a traffic nor a time: `seconds` is the time.
    """
    inside = count.inside * cluster.inside * cluster.servers * _exchanges_inside(cluster)
    return inside + _across(cluster, count)


def seconds(cluster: Cluster, count: Syncs) -> float:
    """The same without K', as a time: all servers synchronise inside at the same time."""
    return count.inside * cluster.inside * _exchanges_inside(cluster) + _across(cluster, count)


def _exchanges_inside(cluster: Cluster) -> float:
    return math.log2(cluster.workers // cluster.servers)


def _across(cluster: Cluster, count: Syncs) -> float:
    return count.across * cluster.across * math.log2(cluster.workers)
