"""Train PyTorch models on workers that synchronise only once in a while.

Local SGD, post-local SGD and hierarchical local SGD (Lin et al. 2020), and what grew from them.

Examples:
    >>> import localsgd
    >>> localsgd.picture([localsgd.every(2), localsgd.every(2)], steps=8)
    '..1..2..1..2'
"""

from localsgd.basics import starting  # noqa: F401, I001  # before torch, which takes seconds
from localsgd import reduce
from localsgd.averaging import outer
from localsgd.averaging.delay import Delay
from localsgd.averaging.topology import Topology
from localsgd.errors import PeerLost, UserError
from localsgd.optimizer import LocalSGD, compact, load, save, saved
from localsgd.reduce import ExactMean, OrderedMean
from localsgd.schedule.adaptive import adacomm, cyclic, decreasing, plateau, qsr, waiting_below
from localsgd.schedule.fixed import every, piecewise, post_local, warmup
from localsgd.schedule.progress import Progress, Schedule, epochs, fraction
from localsgd.schedule.rounds import Position, picture, rounds
from localsgd.version import __version__
from localsgd.wire import Ledger

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
    "compact",
    "cyclic",
    "decreasing",
    "epochs",
    "every",
    "fraction",
    "load",
    "outer",
    "picture",
    "piecewise",
    "plateau",
    "post_local",
    "qsr",
    "reduce",
    "rounds",
    "save",
    "saved",
    "waiting_below",
    "warmup",
]
