"""A local step through `LocalSGD` and through the trainer against the bare PyTorch loop.

All make the same batches from the same random images, crops and flips included, and train the same
network with the same optimizer. The bare loop runs twice: how far it is from itself is how far the
other figures can be trusted.
"""

from __future__ import annotations

import torch

from benchmarks import crew
from benchmarks.report import Finding, publish, timed
from benchmarks.timing import Action, take_turns, turn_seconds
from benchmarks.workloads import advance, assembled, inner, loop, random_cifar
from localsgd import LocalSGD
from localsgd.train.data import models

BATCHES = (32, 128)
BOUND = 1.02
SECONDS = 45.0


def contestants(batch: int, model: str = "resnet20") -> dict[str, Action]:
    """A step of each, on a model of its own."""
    task = random_cifar()
    networks = [models.build(model, task, seed=0) for _ in range(3)]
    optimizers = [inner(network) for network in networks]
    optimizers[2] = LocalSGD(optimizers[2], networks[2], local_steps=16)
    bare, again, local = (
        loop(task, network, optimizer, batch)
        for network, optimizer in zip(networks, optimizers, strict=True)
    )
    trainer = assembled(task, model, batch, topology="1", method="mini-batch")
    return {
        "bare loop": bare,
        "bare loop again": again,
        "LocalSGD, H = 16": local,
        "trainer, K = 1": lambda: advance(trainer, 1),
    }


def timed_here(batch: int, seconds: float) -> list[Finding]:
    actions = contestants(batch)
    turns = max(8, int(seconds / turn_seconds(actions)))
    bounds = dict.fromkeys(list(actions)[2:], BOUND)
    return timed(f"ResNet-20, B = {batch}", take_turns(actions, turns), "bare loop", bounds)


def measure(seconds: float = SECONDS) -> list[Finding]:
    """Findings of all batches, in about so many seconds each."""
    return [found for batch in BATCHES for found in crew.run(1, timed_here, batch, seconds)]


def main(share: float = 1.0) -> bool:
    torch.set_num_threads(1)
    return publish("step", "A local step", measure(share * SECONDS))


if __name__ == "__main__":
    main()
