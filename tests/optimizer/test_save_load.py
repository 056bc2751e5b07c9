"""`localsgd.save` and `localsgd.load`: resumed runs, whole or not at all, other numbers of workers."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import localsgd
from localsgd import Delay, LocalSGD, UserError, outer
from localsgd.reduce import CompressedMean, PowerSgd, Sign
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, loss_of, nesterov, net, values

pytestmark = pytest.mark.timeout(200)

Made = tuple[Any, LocalSGD]


def made(keywords: dict[str, Any], make: Any = nesterov, seed: int = 0) -> Made:
    model = net()
    torch.manual_seed(seed)
    return model, LocalSGD(make(model), model, **{"local_steps": 3, **keywords})


def trained(model: Any, optimizer: LocalSGD, steps: int) -> None:
    rank = dist.get_rank() if dist.is_initialized() else 0
    for _ in range(steps):
        optimizer.zero_grad()
        noise = torch.rand(()).double()  # random numbers are a part of the state
        (loss_of(model, rank, optimizer.steps) * noise).backward()
        optimizer.step()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


SIGN = CompressedMean(Sign())
RESUMED: list[tuple[dict[str, Any], Any]] = [
    ({}, nesterov),
    ({"local_steps": 1}, adam),
    ({"outer": "diloco", "inner_state": "exp_avg=average"}, adam),
    ({"reducer": SIGN}, nesterov),
    ({"reducer": CompressedMean(Sign(), way="two-phase"), "outer": "slowmo"}, nesterov),
    ({"reducer": PowerSgd(rank=1)}, nesterov),
    ({"delay": Delay(fragments=2, syncs=1), "local_steps": 2}, nesterov),
    ({"delay": Delay(fragments=2, syncs=2), "reducer": SIGN, "local_steps": 2}, nesterov),
    ({"delay": Delay(syncs=1), "outer": "diloco", "local_steps": 2}, nesterov),
    ({"local_steps": localsgd.qsr(2, alpha=0.2)}, nesterov),
]
STOP, END = 4, 9


def resumed(folder: str) -> None:
    """Each way to average, cut after 4 of 9 steps and gone on from in other objects."""
    for index, (keywords, make) in enumerate(RESUMED):
        for asynchronous in (False, True) if index == 2 else (False,):
            at = Path(folder) / f"{index}-{asynchronous}"
            model, optimizer = made(keywords, make)
            trained(model, optimizer, STOP)
            scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5])
            done = localsgd.save(
                at, model, optimizer, asynchronous=asynchronous, scheduler=scheduler, epoch=7
            )
            undisturbed(model, optimizer, scheduler)
            done.result()
            again, new = made(keywords, make, seed=1)
            other = torch.optim.lr_scheduler.MultiStepLR(new, [5])
            assert localsgd.load(at, again, new, scheduler=other) == {"epoch": 7}
            undisturbed(again, new, other)
            assert_bits(values(again), values(model))
            assert str(new.state_dict()["state"]) == str(optimizer.state_dict()["state"])
            assert sorted(p.name for p in at.parent.glob(f"{at.name}*")) == [at.name]


def undisturbed(model: Any, optimizer: LocalSGD, scheduler: Any) -> None:
    for _ in range(END - STOP):
        trained(model, optimizer, 1)
        scheduler.step()
    optimizer.finish()


def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    run(2, resumed, str(tmp_path))


def test_with_one_worker_too(tmp_path: Path) -> None:
    resumed(str(tmp_path))
