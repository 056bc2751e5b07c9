"""Processes that live and die: start them, join them, watch them, compare what they were given."""

from localsgd.processes.failure import USER_ERROR_EXIT
from localsgd.processes.heartbeat import Heartbeat
from localsgd.processes.join import joined
from localsgd.processes.last_words import PEER_LOST_EXIT, is_launched, say_last_words
from localsgd.processes.launch import launch
from localsgd.processes.parent import end_with
from localsgd.processes.same import check_same
from localsgd.processes.world import World, find_world

__all__ = [
    "PEER_LOST_EXIT",
    "USER_ERROR_EXIT",
    "Heartbeat",
    "World",
    "check_same",
    "end_with",
    "find_world",
    "is_launched",
    "joined",
    "launch",
    "say_last_words",
]
