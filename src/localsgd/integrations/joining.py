"""A worker's `torchft.Manager` from its environment, as `localsgd run --fault-tolerant` sets it.

    TORCHFT_LIGHTHOUSE    HOST:PORT of the lighthouse, or http://HOST:PORT
    LOCALSGD_WORKERS      K as planned
    LOCALSGD_NAME         of this worker; ranks follow from names
    LOCALSGD_GATE         port of a store on loopback, in which it says how far it is
    LOCALSGD_AGAIN        is set if the worker is started again, and so must not begin a run anew

The first alone is needed. torchft reads limits itself: TORCHFT_TIMEOUT_SEC of a collective (60),
TORCHFT_QUORUM_TIMEOUT_SEC (3600), longer than the longest round, TORCHFT_CONNECT_TIMEOUT_SEC (60).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch.distributed as dist

from localsgd.basics.units import whole_within
from localsgd.errors import UserError, short
from localsgd.train.launch.slurm import LAST_PORT, LOOPBACK, MOST_PROCESSES
from localsgd.train.launch.store import serve_on
from localsgd.train.launch.tending import OPEN, OVER, joined_key, made_key

if TYPE_CHECKING:
    from torchft import Manager

LIGHTHOUSE = "TORCHFT_LIGHTHOUSE"
WORKERS = "LOCALSGD_WORKERS"
NAME = "LOCALSGD_NAME"
GATE = "LOCALSGD_GATE"
AGAIN = "LOCALSGD_AGAIN"
TIMEOUT = "TORCHFT_TIMEOUT_SEC"

LIMIT = timedelta(seconds=60)
"""Of a collective, and of a connection."""
QUORUM_LIMIT = timedelta(hours=1)
RETRIES = 10
"""While a lighthouse is started again."""
GATE_LIMIT = timedelta(minutes=10)
"""For the slowest start of a worker; then the others begin without it."""
REACH_SECONDS = 10.0


def own_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


@dataclass
class Joining:
    """How this worker joins the others.

    Args:
        manager: its own.
        workers: K as planned, if it is said.
        name: of this worker.
        again: whether it was started again.
        gate: where it says how far it is, if its launcher listens.
    """

    manager: Manager
    workers: int | None
    name: str
    again: bool
    gate: dist.TCPStore | None
    _said: bool = False

    @staticmethod
    def of(environment: Mapping[str, str]) -> Joining:
        """Makes the manager, and waits at the gate if there is one.

        Raises:
            UserError: torchft is not installed, there is no lighthouse, K or a limit is no number,
                or the other workers have ended.
        """
        check_installed()
        lighthouse = environment.get(LIGHTHOUSE)
        if not lighthouse:
            raise UserError(
                f"{LIGHTHOUSE} does not say where the lighthouse is; start the script by `localsgd "
                "run --fault-tolerant SCRIPT`, or set it to HOST:PORT of one of yours"
            )
        lighthouse, workers = place_of(lighthouse), _workers(environment)
        name, limit = environment.get(NAME) or own_name(), _limit(environment)
        manager = manager_at(reached(lighthouse), name, lighthouse, limit)
        again = AGAIN in environment
        return Joining(manager, workers, name, again, _gate(environment, name, again))

    def joined(self) -> None:
        """Tells the launcher that this worker has been in a sync that counts."""
        if not self._said and self.gate is not None:
            with suppress(dist.DistError):  # The launcher is going.
                self.gate.set(joined_key(self.name), "")
        self._said = True


def manager_at(
    address: str, name: str, lighthouse: str, limit: timedelta = LIMIT, **settings: Any
) -> Manager:
    """The manager of a worker that is a replica group of its own; others reach it at `address`.

    Args:
        limit: of a collective.
        settings: of `torchft.Manager`, beside or in place of those here.
    """
    from torchft import Manager, ProcessGroupGloo

    store, port = serve_on(address)
    usual = {
        "use_async_quorum": False,
        "init_sync": False,  # The first sync shares a model.
        "min_replica_size": 1,
        "load_state_dict": None,
        "state_dict": None,
        "quorum_timeout": QUORUM_LIMIT,
        "connect_timeout": LIMIT,
        "quorum_retries": RETRIES,
    }
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit),
        rank=0,
        world_size=1,
        store_addr=address,
        store_port=port,
        hostname=address,
        replica_id=name,
        lighthouse_addr=lighthouse,
        timeout=limit,
        **(usual | settings),
    )
    manager.kept_store = store  # Its process group needs it as long as the worker lives.
    return manager


def _workers(environment: Mapping[str, str]) -> int | None:
    text = environment.get(WORKERS)
    found = whole_within(text, 1, MOST_PROCESSES) if text else None
    if text and found is None:
        raise UserError(f"{WORKERS}={short(text)} is no number of workers; give 1 or more")
    return found


def _limit(environment: Mapping[str, str]) -> timedelta:
    """Of a collective."""
    text = environment.get(TIMEOUT, "")
    try:
        found = timedelta(seconds=float(text)) if text else LIMIT
    except (ValueError, OverflowError):
        found = timedelta()
    if found <= timedelta():
        raise UserError(
            f"{TIMEOUT}={short(text)} is no number of seconds; give one above 0, such as 60"
        )
    return found


def _gate(environment: Mapping[str, str], name: str, again: bool) -> dist.TCPStore | None:
    """The launcher's store, once workers may begin."""
    text = environment.get(GATE)
    if not text:
        return None
    port = whole_within(text, 1, LAST_PORT)
    if port is None:
        raise UserError(f"{GATE}={short(text)} is no port; unset it, as `localsgd run` sets it")
    try:
        gate = dist.TCPStore(LOOPBACK, port, is_master=False, timeout=LIMIT)
    except dist.DistError:
        raise UserError(
            f"{GATE}={port}: no launcher listens at that port of {LOOPBACK}; unset it, or start "
            "the script by `localsgd run --fault-tolerant SCRIPT`"
        ) from None
    gate.set(made_key(name), "")
    if not again:
        with suppress(dist.DistError):  # It takes too long.
            gate.wait([OPEN], GATE_LIMIT)
        if gate.check([OVER]):
            raise UserError(
                f"{name} comes when other workers have ended already, and would train alone, from "
                "the start; start all anew"
            )
    return gate


def check_installed() -> None:
    try:
        import torchft  # noqa: F401
    except ModuleNotFoundError:
        raise UserError(
            "workers that come and go need torchft, which is not installed; "
            "pip install 'localsgd[torchft]'"
        ) from None


def place_of(lighthouse: str) -> str:
    """Its http://HOST:PORT, also from HOST:PORT."""
    return lighthouse if "://" in lighthouse else f"http://{lighthouse}"


def reached(lighthouse: str) -> str:
    """This machine's address as the lighthouse sees it, and so probably the other workers.

    Raises:
        UserError: nothing answers there.
    """
    try:
        place = urlsplit(lighthouse)
        host, port = place.hostname, place.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise UserError(
            f"{lighthouse!r} is no place of a lighthouse; give HOST:PORT, such as node0:29510"
        )
    try:
        with socket.create_connection((host, port), REACH_SECONDS) as connection:
            return connection.getsockname()[0]
    except OSError as error:
        raise UserError(
            f"no lighthouse answers at {lighthouse} ({error.strerror or error}); start one by "
            "`torchft_lighthouse`, or let `localsgd run --fault-tolerant` start one on one machine"
        ) from None
