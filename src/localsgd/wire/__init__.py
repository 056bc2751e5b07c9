"""How tensors travel between the members of a level."""

from localsgd.wire.collective import Collective, Pending, Sending
from localsgd.wire.in_process import InProcess
from localsgd.wire.latency import WithLatency
from localsgd.wire.metered import Entry, Ledger, Metered
from localsgd.wire.process_group import Leaders, ProcessGroup, Sliced

__all__ = [
    "Collective",
    "Entry",
    "InProcess",
    "Leaders",
    "Ledger",
    "Metered",
    "Pending",
    "ProcessGroup",
    "Sending",
    "Sliced",
    "WithLatency",
]
