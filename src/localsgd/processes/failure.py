"""Of all the processes that failed: which failed first, and what a person should read."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from localsgd.errors import DIVERGED_EXIT
from localsgd.processes.last_words import PEER_LOST_EXIT

USER_ERROR_EXIT = 2
"""Exit status of a process that ends for a user's mistake."""


@dataclass(frozen=True)
class Failure:
    """A process that did not end with 0.

    Args:
        rank: its rank.
        pid: its process id.
        exit_code: its exit status, or minus the number of the signal that killed it.
        words: its last words, if it has said any.
        ended: ranks that it killed because they hung.
    """

    rank: int
    pid: int
    exit_code: int
    words: str | None = None
    ended: tuple[int, ...] = ()


@dataclass(frozen=True)
class Cause:
    """What to print, and the exit status of the whole."""

    lines: tuple[str, ...]
    status: int


def first_cause(failures: Sequence[Failure]) -> Cause:
    """The cause among `failures`, which are in the order in which they were noticed.

    One failure brings others: peers notice the loss, the launcher ends the rest with SIGTERM. So,
    in this order: users' mistakes, each once; a process that died by itself; a process that was
    found hanging; one that SIGTERM ended.
    """
    mistakes = [f for f in failures if f.exit_code in (USER_ERROR_EXIT, DIVERGED_EXIT)]
    if mistakes:
        words = dict.fromkeys(mistake.words for mistake in mistakes if mistake.words)
        return Cause(tuple(words), mistakes[0].exit_code)
    first = min(failures, key=lambda failure: _distance(failure, failures))
    if _noticed(first) and first.words:
        return Cause((first.words,), PEER_LOST_EXIT)
    return Cause((describe(first),), PEER_LOST_EXIT if first.exit_code < 0 else 1)


def describe(failure: Failure) -> str:
    """One line: who, and how it died."""
    who = f"rank {failure.rank} (pid {failure.pid})"
    if failure.exit_code >= 0:
        why = f": {failure.words}" if failure.words else ""
        return f"{who} failed with exit status {failure.exit_code}{why}"
    name = _signal_name(-failure.exit_code)
    hint = "; was there enough memory?" if name == "SIGKILL" else ""
    return f"{who} was killed by {name}{hint}"


def _distance(failure: Failure, failures: Sequence[Failure]) -> int:
    hung = any(failure.rank in other.ended for other in failures)
    if hung or (failure.exit_code == -signal.SIGTERM and not failure.ended):
        return 2
    return 1 if _noticed(failure) else 0


def _noticed(failure: Failure) -> bool:
    """Whether it ended because another was lost, be it that the launcher was quicker."""
    return failure.exit_code == PEER_LOST_EXIT or bool(failure.ended)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
