"""Rank and number of processes, read from the environment.

Several processes are started by `localsgd run --processes P` or `torchrun` (both set RANK,
WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), or by `srun` (see `slurm`).
Anything else is a single process.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from localsgd.errors import UserError, short
from localsgd.train.launch import slurm


@dataclass(frozen=True)
class Store:
    """The address of the run's key-value store, through which its processes find each other.

    Args:
        host: MASTER_ADDR; a loopback address if all processes are on one machine, unless a launcher
            holds the store.
        port: MASTER_PORT.
        of_rank_0: rank 0 holds the store; otherwise the launcher of the first machine does, which
            outlives every rank.
    """

    host: str
    port: int
    of_rank_0: bool

    def __post_init__(self) -> None:
        if not self.host.isprintable():
            raise UserError(f"{short(self.host)} is no name of a machine; set MASTER_ADDR to one")

    @property
    def on_loopback(self) -> bool:
        """Whether the host is a loopback address, or the name of one on every machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def kept_on(self, one_machine: bool) -> Store:
        """The same, on loopback if all processes are on one machine and one of them holds it."""
        if one_machine and self.of_rank_0 and not self.on_loopback:
            return replace(self, host=slurm.LOOPBACK)
        return self

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class World:
    """This process among all processes of the run.

    Args:
        rank: 0 to size - 1, over all machines.
        size: processes of the run.
        local_rank: 0 to local_size - 1, on this machine.
        local_size: processes on this machine.
        store: None for a single process.
        bound: the scheduler has given every process its own cores and GPUs, and hides the others.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    store: Store | None = None
    bound: bool = False

    @property
    def on_one_machine(self) -> bool:
        return self.local_size == self.size


_NUMBERED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_TORCHRUN = (*_NUMBERED, "MASTER_ADDR", "MASTER_PORT")


def find_world(environment: Mapping[str, str] = os.environ) -> World:
    """The process that `environment` describes; nothing is joined.

    RANK is read before Slurm's variables, so that `torchrun` and `--processes` work in a Slurm job.

    Raises:
        UserError: only some of torchrun's variables are set, or some are not numbers.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _of_torchrun(environment)
    return _of_slurm(environment)


def attempt(environment: Mapping[str, str] = os.environ) -> int:
    """How often `torchrun` has started the run again."""
    name = "TORCHELASTIC_RESTART_COUNT"
    return slurm.number(environment, name) if environment.get(name) else 0


def _of_torchrun(environment: Mapping[str, str]) -> World:
    missing = [name for name in _TORCHRUN if not environment.get(name)]
    if missing:
        raise UserError(
            f"RANK and WORLD_SIZE are set, but not {', '.join(missing)}: start with torchrun, srun "
            f"or --processes, set all of {', '.join(_TORCHRUN)}, or unset RANK"
        )
    rank, size, local_rank, local_size = (slurm.number(environment, name) for name in _NUMBERED)
    port = slurm.number(environment, "MASTER_PORT", most=slurm.LAST_PORT)
    if not 0 <= rank < size or not 0 <= local_rank < local_size <= size:
        raise UserError(
            f"RANK={rank} of WORLD_SIZE={size}, LOCAL_RANK={local_rank} of "
            f"LOCAL_WORLD_SIZE={local_size}: a rank lies between 0 and its size - 1"
        )
    if size == 1:
        return World()
    if port == 0:
        raise UserError(
            "MASTER_PORT=0 is not a port that processes can connect to: start torchrun with "
            "--standalone or --master-port"
        )
    of_rank_0 = environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = Store(environment["MASTER_ADDR"], port, of_rank_0).kept_on(local_size == size)
    return World(rank, size, local_rank, local_size, store)


def _of_slurm(environment: Mapping[str, str]) -> World:
    task = slurm.find_task(environment)
    if task is None or task.size == 1:
        return World()
    store = Store(task.host, task.port, of_rank_0=True).kept_on(task.local_size == task.size)
    return World(task.rank, task.size, task.local_rank, task.local_size, store, bound=True)
