"""Train PyTorch models on workers that agree only now and then.

Local SGD, post-local SGD and hierarchical local SGD (Lin et al. 2020), and what grew from them.

>>> import localsgd
>>> localsgd.picture([localsgd.every(2), localsgd.every(2)], steps=8)
'..1..2..1..2'
"""

from localsgd import starting  # noqa: F401, I001  # before torch, which takes seconds
from localsgd import outer
from localsgd.adaptive import adacomm, cyclic, decreasing, plateau, qsr, waiting_share
from localsgd.collective import Ledger
from localsgd.delayed import Delay
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
    "Delay",
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
    "adacomm",
    "cyclic",
    "decreasing",
    "epochs",
    "every",
    "outer",
    "picture",
    "piecewise",
    "plateau",
    "post_local",
    "qsr",
    "rounds",
    "share",
    "waiting_share",
    "warmup",
]
