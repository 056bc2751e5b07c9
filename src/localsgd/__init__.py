"""Train PyTorch models on workers that agree only now and then.

Local SGD, post-local SGD and hierarchical local SGD (Lin et al. 2020), and what grew from them.

>>> import localsgd
>>> localsgd.picture([localsgd.every(2), localsgd.every(2)], steps=8)
'..1..2..1..2'
"""

from localsgd import outer
from localsgd.collective import Ledger
from localsgd.errors import PeerLost, UserError
from localsgd.optimizer import LocalSGD
from localsgd.reduce import ExactMean, OrderedMean
from localsgd.schedule import (
    Position,
    Progress,
    Schedule,
    epochs,
    every,
    picture,
    piecewise,
    post_local,
    rounds,
    share,
    warmup,
)
from localsgd.topology import Topology
from localsgd.version import __version__

__all__ = [
    "ExactMean",
    "Ledger",
    "LocalSGD",
    "OrderedMean",
    "PeerLost",
    "Position",
    "Progress",
    "Schedule",
    "Topology",
    "UserError",
    "__version__",
    "epochs",
    "every",
    "outer",
    "picture",
    "piecewise",
    "post_local",
    "rounds",
    "share",
    "warmup",
]
