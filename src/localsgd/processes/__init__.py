"""Processes that live and die: start them, join them, watch them, compare what they were given."""

from localsgd.processes.ending import (
    PEER_LOST_EXIT,
    USER_ERROR_EXIT,
    end_with,
    is_launched,
    say_last_words,
)
from localsgd.processes.heartbeat import Heartbeat
from localsgd.processes.join import joined
from localsgd.processes.launch import launch
from localsgd.processes.same import check_same, gather_bytes
from localsgd.processes.world import World, find_world

__all__ = [
    "PEER_LOST_EXIT",
    "USER_ERROR_EXIT",
    "Heartbeat",
    "World",
    "check_same",
    "end_with",
    "find_world",
    "gather_bytes",
    "is_launched",
    "joined",
    "launch",
    "say_last_words",
]
