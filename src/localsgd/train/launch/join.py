"""Joins the other processes of a run, and leaves them at its end."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from localsgd.basics.units import plural
from localsgd.errors import PeerLost, UserError
from localsgd.train.launch.ending import end_with_parent
from localsgd.train.launch.output import own_output
from localsgd.train.launch.slurm import number
from localsgd.train.launch.store import loopback_interface, open_store
from localsgd.train.launch.world import World, attempt, find_world

GLOO_TELLS = torch.__version__ < TorchVersion("2.10")
"""Whether gloo prints each group's connections on standard output."""


@contextmanager
def joined(device: str = "cpu", *, timeout_seconds: float = 1800.0) -> Generator[World]:
    """Joins the run that the environment describes, as one of its processes or the only one.

    Inside, `torch.distributed` is initialised (gloo for CPU tensors, NCCL for CUDA ones), this
    process has its own GPU and, unless OMP_NUM_THREADS is set, an equal share of the machine's
    cores as threads; what libraries print goes to standard error. A single process is left
    unchanged.

        with joined() as world:
            print(f"process {world.rank} of {world.size}")

    Args:
        device: "cpu" or "cuda".
        timeout_seconds: time limit for joining and for each collective. It has to be longer than
            the slowest round; `Heartbeat` finds processes that died or hang.

    Raises:
        UserError: the environment is incomplete, or has fewer GPUs than processes.
        PeerLost: not all processes have joined in time.
    """
    world = find_world()
    end_with_parent()
    if world.size == 1:
        yield world
        return
    _take_threads(world)
    if device.startswith("cuda"):
        torch.cuda.set_device(gpu_of(world, torch.cuda.device_count()))
    with own_output(drop=not device.startswith("cuda") and GLOO_TELLS):
        _initialise(world, device, timedelta(seconds=timeout_seconds))
        try:
            yield world
        except BaseException:
            # Tearing NCCL down waits for collectives that will never end; the process ends anyway.
            if not device.startswith("cuda"):
                dist.destroy_process_group()
            raise
        dist.destroy_process_group()


def gpu_of(world: World, gpus: int) -> int:
    """The index of this process's GPU among the `gpus` that it sees.

    Raises:
        UserError: there are fewer GPUs than processes on this machine.
    """
    if world.local_rank < gpus:
        return world.local_rank
    if gpus == 1 and world.bound:
        return 0
    raise UserError(
        f"{plural(world.local_size, 'process', 'processes')} on this machine, but "
        f"{plural(gpus, 'GPU')}: start at most one process per GPU; a process can host several "
        "workers"
    )


def threads_of(world: World, cores: int) -> int:
    """An equal share of the machine's `cores` for this process, at least 1."""
    return max(1, cores // world.local_size)


def _take_threads(world: World) -> None:
    if os.environ.get("OMP_NUM_THREADS"):
        return
    if world.bound and os.environ.get("SLURM_CPUS_PER_TASK"):
        torch.set_num_threads(max(1, number(os.environ, "SLURM_CPUS_PER_TASK")))
    else:
        torch.set_num_threads(threads_of(world, cores()))


def cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _initialise(world: World, device: str, timeout: timedelta) -> None:
    address = world.store
    assert address is not None
    if world.on_one_machine:
        _stay_on_loopback()
    serves = address.of_rank_0 and world.rank == 0
    try:
        store = open_store(address, timeout, size=world.size, serve=serves)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo",
            store=dist.PrefixStore(f"localsgd/attempt/{attempt()}", store),
            rank=world.rank,
            world_size=world.size,
            timeout=timeout,
        )
    except (dist.DistError, OSError) as error:
        raise PeerLost(
            f"rank {world.rank} could not connect to the other "
            f"{plural(world.size - 1, 'process', 'processes')} at {address} within "
            f"{timeout.total_seconds():g} s: {str(error).splitlines()[0]}"
        ) from error


def _stay_on_loopback() -> None:
    """Keeps the processes of one machine on loopback, out of reach of other machines."""
    interface = loopback_interface()
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
