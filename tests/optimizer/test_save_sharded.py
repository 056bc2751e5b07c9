"""Saving workers of several ranks: resumed bits, other shards, and what a plain save mixes up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import localsgd
from localsgd import LocalSGD
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, assert_same
from tests.optimizer.sharded import (
    SHARDS,
    Values,
    meshes,
    momentum,
    net,
    rank_of_worker,
    sharded,
    train,
    whole,
)

STOP, END = 6, 11
KEYWORDS: dict[str, Any] = {"local_steps": 4, "reducer": "ef-sign", "outer": "diloco"}


def made(workers: int) -> tuple[nn.Module, LocalSGD]:
    mesh = meshes(workers, dist.get_world_size() // workers)
    model = sharded(net(), mesh)
    return model, LocalSGD(momentum(model), model, topology=mesh["replicate"], **KEYWORDS)


def saved(folder: Path) -> tuple[Values, Values, dict[str, Any]]:
    """Weights at the end; what is averaged when it is saved, and the mean of the momenta."""
    worker, position = rank_of_worker()
    model, optimizer = made(2)
    train([optimizer], model, worker, range(STOP), position)
    writing = localsgd.save(folder, model, optimizer, asynchronous=True, step=STOP)
    with optimizer.averaged_model():
        mean = whole(model)
    momenta = [s["momentum_buffer"].full_tensor().clone() for s in optimizer.inner.state.values()]
    train([optimizer], model, worker, range(STOP, END), position)
    writing.result()
    found: list[Any] = [None] * 4
    dist.all_gather_object(found, momenta)
    return whole(model), mean, [(a + b) / 2 for a, b in zip(found[0], found[2], strict=True)]


def resumed(folder: Path) -> Values:
    worker, position = rank_of_worker()
    model, optimizer = made(2)
    assert localsgd.load(folder, model, optimizer) == {"step": STOP}
    train([optimizer], model, worker, range(STOP, END), position)
    return whole(model)


def reshaped(folder: Path, workers: int) -> tuple[Values, list[torch.Tensor], int]:
    model, optimizer = made(workers)
    localsgd.load(folder, model, optimizer)
    levels = [level for row in optimizer.state_dict()["local_sgd"]["levels"] for level in row]
    moved = any(bool(torch.as_tensor(v).any()) for one in levels for v in one["outer"].values())
    assert moved == (optimizer.agreement.positions == SHARDS)  # The outer optimizer's momentum.
    start = whole(model)
    momenta = [s["momentum_buffer"].full_tensor().clone() for s in optimizer.inner.state.values()]
    steps = optimizer.steps
    train(
        [optimizer],
        model,
        optimizer.worker,
        range(STOP, END),
        optimizer.agreement.position % SHARDS,
    )
    optimizer.finish()
    return start, momenta, steps


def alone(folder: Path) -> tuple[Values, list[torch.Tensor], int]:
    """By workers of one rank, without any shards."""
    model = net()
    optimizer = LocalSGD(momentum(model), model, **KEYWORDS)
    localsgd.load(folder, model, optimizer)
    start, steps = whole(model), optimizer.steps
    momenta = [state["momentum_buffer"].clone() for state in optimizer.inner.state.values()]
    train([optimizer], model, dist.get_rank(), range(STOP, END))
    return start, momenta, steps


def test_a_resumed_run_has_the_same_bits_and_other_shards_the_mean(tmp_path: Path) -> None:
    folder = tmp_path / "save"
    first = run(4, saved, folder)
    for (end, _, _), again in zip(first, run(4, resumed, folder), strict=True):
        assert_bits(again, end)
    _, mean, momenta = first[0]
    others = [run(4, reshaped, folder, workers) for workers in (1, 4)]
    others += [run(2, reshaped, folder, 1), run(2, alone, folder)]
    for start, found, steps in (each for ranks in others for each in ranks):
        assert_same(start, mean)
        for own, expected in zip(found, momenta, strict=True):
            torch.testing.assert_close(own, expected, rtol=1e-12, atol=1e-12)
        assert steps == STOP


def mixed(folder: Path) -> tuple[Values, Values]:
    """What a plain save of equal names gives back in the middle of a round, and what was there."""
    worker, position = rank_of_worker()
    model, optimizer = made(2)
    train([optimizer], model, worker, range(2), position)
    own = whole(model)
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    return own, whole(model)


def test_a_plain_save_would_mix_workers(tmp_path: Path) -> None:
    found = run(4, mixed, tmp_path / "save")
    (first, _), (second, back) = found[0], found[2]
    from_first = [torch.equal(back[name], first[name]) for name in back]
    from_second = [torch.equal(back[name], second[name]) for name in back]
    assert not all(from_first)
    assert not all(from_second)
