"""Who averages with whom, and how: levels, topology, fragments and delays, outer optimizers.

`Averaging` is what the core loop asks of a level, and `Level` the plain one. `Outer` is an outer
optimizer, which `outer_named` has by name.
"""

from localsgd.averaging.delay import Delay
from localsgd.averaging.level import Averaging, Level
from localsgd.averaging.outer import Outer, outer_named
from localsgd.averaging.topology import Topology

__all__ = ["Averaging", "Delay", "Level", "Outer", "Topology", "outer_named"]
