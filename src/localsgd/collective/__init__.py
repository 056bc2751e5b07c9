"""How tensors travel between the members of a level."""

from localsgd.collective.delayed import Delayed
from localsgd.collective.in_process import InProcess
from localsgd.collective.metered import Entry, Ledger, Metered
from localsgd.collective.process_group import Leaders, ProcessGroup, Sliced
from localsgd.collective.seam import Collective, Pending

__all__ = [
    "Collective",
    "Delayed",
    "Entry",
    "InProcess",
    "Leaders",
    "Ledger",
    "Metered",
    "Pending",
    "ProcessGroup",
    "Sliced",
]
