"""Start P processes of a run on this machine, and end them together.

The processes are children of torch.distributed's elastic agent (`torch.distributed.launcher.api`),
which is what `torchrun` runs; this file adds what a person sees: one line that says what went
wrong, an exit status with a meaning, and no process left behind.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from localsgd.processes.failure import Failure, first_cause
from localsgd.processes.last_words import LAUNCHER

_DEFAULTS = {
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "10",  # seconds between the signal and SIGKILL
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # the store warns with stack traces when a peer goes
}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def launch(
    command: Sequence[str], processes: int, *, program: Sequence[str] = ("-m", "localsgd")
) -> int:
    """Run `processes` copies of `python -m localsgd COMMAND` as one run, and wait for them.

    A copy that fails ends the others. Ctrl-C and SIGTERM are passed on to all; they have 10 seconds
    to write what they must.

    Args:
        command: arguments of `program`, the same for every process.
        processes: P, at least 1.
        program: what Python runs.

    Returns:
        The exit status: 0; 2 for a user's mistake, whose line is printed once; 3 when a process was
        killed or lost to a hang; 128 + the signal's number (130 for Ctrl-C) when this process was
        told to stop; otherwise 1. Where it is neither 0 nor a signal's, one line on stderr says
        why.
    """
    try:
        with (
            _quiet(),
            _signals_as_before(),
            _environment({LAUNCHER: str(os.getpid())}, _DEFAULTS),
            tempfile.TemporaryDirectory("-localsgd") as folder,
        ):
            elastic_launch(_configuration(processes, folder), sys.executable)(*program, *command)
    except SignalException as stopped:
        return 128 + stopped.sigval
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except ChildFailedError as failed:
        cause = first_cause([_failure(rank, f) for rank, f in failed.failures.items()])
        for line in cause.lines:
            print(line, file=sys.stderr, flush=True)
        return cause.status
    return 0


def _configuration(processes: int, folder: str) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )


def _failure(rank: int, failure: ProcessFailure) -> Failure:
    words = failure.error_file_data
    said = "ended" in words  # our own words, not the agent's
    return Failure(
        rank=rank,
        pid=failure.pid,
        exit_code=failure.exitcode,
        words=words["message"] if said else None,
        ended=tuple(words["ended"]) if said else (),
    )


@contextmanager
def _environment(forced: Mapping[str, str], wanted: Mapping[str, str]) -> Generator[None]:
    """Set variables for the children, `wanted` ones only where the user has not, and undo it."""
    before = dict(os.environ)
    os.environ.update({**wanted, **os.environ, **forced})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _signals_as_before() -> Generator[None]:
    """The agent takes the signals and does not give them back."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _quiet() -> Generator[None]:
    """Silence the agent's own account; `launch` says what a person needs."""
    loggers = [
        logging.getLogger(name)
        for name in list(logging.root.manager.loggerDict)
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher"))
    ]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled
