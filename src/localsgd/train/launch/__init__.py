"""Processes of a run: start them, join them, watch over them, compare their arguments."""

from localsgd.train.launch.ending import (
    PEER_LOST_EXIT,
    USER_ERROR_EXIT,
    end_with,
    is_launched,
    print_exit_message,
)
from localsgd.train.launch.equal_arguments import check_same, gather_bytes
from localsgd.train.launch.heartbeat import Heartbeat
from localsgd.train.launch.join import joined
from localsgd.train.launch.launch import launch
from localsgd.train.launch.world import World, find_world

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
    "print_exit_message",
]
