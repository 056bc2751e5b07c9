"""A node: starts a worker or the lighthouse when it is told to, and kills it.

    python -m benchmarks.network.losses.node ADDRESS

Lines on standard input are calls as JSON: `["light", least]`, `["start", method, name, lighthouse,
model, batch, file]`, `["kill"]`. A worker is a fork of this process, which has imported all: so a
start costs no import, and is as fast for all methods.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torchft
from torch import nn
from torchft.coordination import LighthouseServer
from torchft.local_sgd import LocalSGD as TheirLocalSGD

from benchmarks.network.laboratory import WIRE
from benchmarks.workloads import inner, loop, random_cifar
from localsgd import LocalSGD
from localsgd.integrations.joining import manager_at
from localsgd.integrations.torchft import Managed
from localsgd.train.data import models

LOCAL_STEPS = 16
QUORUM = timedelta(minutes=10)
"""Longer than any round."""

BEAT_SECONDS = 5.0
"""After which the lighthouse believes a silent worker to be gone: torchft's default."""

JOIN_SECONDS = 120.0
"""For which it waits for a living worker that is slower than the others."""

Look = Callable[[], tuple[int, int]]
"""Syncs that have counted, and of how many workers the last was."""


def manager_of(name: str, lighthouse: str, address: str, **state: Any) -> torchft.Manager:
    return manager_at(
        address,
        name,
        lighthouse,
        quorum_timeout=QUORUM,
        heartbeat_interval=timedelta(seconds=1),
        init_sync=True,
        quorum_retries=0,
        **state,
    )


def ours(model: nn.Module, sgd: Any, *where: str) -> tuple[Any, Look]:
    manager = manager_of(*where)
    optimizer = LocalSGD(
        sgd, model, local_steps=LOCAL_STEPS, fault_tolerance=Managed(manager), timeout=QUORUM
    )
    members = optimizer.membership
    assert members is not None
    return optimizer, lambda: (members.syncs, len(members.averaged))


def theirs(model: nn.Module, sgd: Any, *where: str) -> tuple[Any, Look]:
    def load(state: Any) -> None:
        model.load_state_dict(state["model"])
        sgd.load_state_dict(state["sgd"])

    manager = manager_of(
        *where,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "sgd": sgd.state_dict()},
    )
    method = TheirLocalSGD(manager, model, sgd, sync_every=LOCAL_STEPS)
    method.__enter__()
    return sgd, lambda: (manager.current_step(), manager.num_participants())


METHODS = {"localsgd": ours, "torchft": theirs}


def work(
    method: str, name: str, lighthouse: str, model: str, batch: int, file: str, address: str
) -> None:
    """Trains for ever; every sync that counts is a line `[time, sync, workers]` in `file`."""
    os.environ["GLOO_SOCKET_IFNAME"] = WIRE
    torch.set_num_threads(1)
    task = random_cifar(seed=os.getpid())
    net = models.build(model, task, seed=0)
    optimizer, look = METHODS[method](net, inner(net), name, lighthouse, address)
    step = loop(task, net, optimizer, batch)
    seen = 0
    with open(file, "a", buffering=1) as told:
        while True:
            step()
            sync, workers = look()
            if sync != seen:
                seen = sync
                told.write(json.dumps([time.monotonic(), sync, workers]) + "\n")


def serve(address: str) -> None:
    child = 0
    kept = None
    print("ready", flush=True)
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        if what == "light":
            kept = LighthouseServer(
                bind="0.0.0.0:0",
                min_replicas=arguments[0],
                join_timeout_ms=int(1000 * JOIN_SECONDS),
                heartbeat_timeout_ms=int(1000 * BEAT_SECONDS),
            )
            print(kept.address().rsplit(":", 1)[1], flush=True)
        elif what == "start":
            child = os.fork()
            if child == 0:
                work(*arguments, address)
        elif child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            child = 0


if __name__ == "__main__":
    serve(sys.argv[1])
