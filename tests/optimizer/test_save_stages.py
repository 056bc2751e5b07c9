"""Saving workers that are the stages of a pipeline: resumed bits, other workers, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import ScheduleGPipe

import localsgd
from localsgd import LocalSGD, UserError
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, assert_same
from tests.optimizer.sharded import (
    Values,
    halves,
    momentum,
    perceptron,
    pipeline_stage,
    whole,
)

STOP, END, STAGES = 6, 11, 2
KEYWORDS: dict[str, Any] = {"local_steps": 4, "reducer": "ef-sign", "outer": "diloco"}


class Worker:
    """A rank with its stage: the whole model, of which it keeps some layers under their names."""

    def __init__(self, workers: int, renamed: bool = False) -> None:
        sizes = (workers, dist.get_world_size() // workers)
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "stage"))
        self.number, index = mesh.get_local_rank("replicate"), mesh.get_local_rank("stage")
        self.last = index == STAGES - 1
        self.part = perceptron(4, 6, 4, 2)
        for layer in range(6):
            if (layer >= 4) != self.last:
                self.part[layer] = nn.Identity()
        if renamed and self.last:  # names that the other stage has too
            self.part = nn.Sequential(*self.part[4:])
        group = mesh["stage"].get_group()
        stage = pipeline_stage(self.part, index, group)
        self._schedule = ScheduleGPipe(stage, 2, loss_fn=lambda x, y: (x - y).square().mean())
        self.optimizer = LocalSGD(
            momentum(self.part), self.part, topology=mesh["replicate"], **KEYWORDS
        )

    def train(self, steps: range) -> None:
        for step in steps:
            x, y = halves(self.number, step)[0]
            self.optimizer.zero_grad()
            if self.last:
                self._schedule.step(target=y)
            else:
                self._schedule.step(x)
            self.optimizer.step()

    def momenta(self) -> list[Tensor]:
        return [s["momentum_buffer"].clone() for s in self.optimizer.inner.state.values()]


def saved(folder: Path) -> tuple[Values, Values, list[Tensor]]:
    """Weights at the end; the average and the momenta when it is saved."""
    worker = Worker(2)
    worker.train(range(STOP))
    writing = localsgd.save(folder, worker.part, worker.optimizer, asynchronous=True, step=STOP)
    with worker.optimizer.averaged_model():
        mean = whole(worker.part)
    momenta = worker.momenta()
    worker.train(range(STOP, END))
    writing.result()
    return whole(worker.part), mean, momenta


def resumed(folder: Path) -> Values:
    worker = Worker(2)
    assert localsgd.load(folder, worker.part, worker.optimizer) == {"step": STOP}
    worker.train(range(STOP, END))
    return whole(worker.part)


def alone(folder: Path) -> tuple[Values, list[Tensor]]:
    """One worker of as many stages goes on."""
    worker = Worker(1)
    localsgd.load(folder, worker.part, worker.optimizer)
    start, momenta = whole(worker.part), worker.momenta()
    worker.train(range(STOP, END))
    assert worker.optimizer.steps == END
    return start, momenta


def refused(folder: Path) -> str:
    """By workers of one rank."""
    model = perceptron(4, 6, 4, 2)
    optimizer = LocalSGD(momentum(model), model, **KEYWORDS)
    with pytest.raises(UserError) as caught:
        localsgd.load(folder, model, optimizer)
    return str(caught.value)


def test_stages_go_on_with_the_same_bits_and_other_workers_from_the_mean(tmp_path: Path) -> None:
    folder = tmp_path / "save"
    first = run(4, saved, folder)
    for (end, _, _), again in zip(first, run(4, resumed, folder), strict=True):
        assert_bits(again, end)
    means = dict(sorted((first[0][1] | first[1][1]).items()))
    assert len(means) == 6
    assert_bits(dict(sorted(load_file(folder / "model.safetensors").items())), means)
    for stage, (start, momenta) in enumerate(run(2, alone, folder)):
        assert_same(start, first[stage][1])
        both = zip(first[stage][2], first[STAGES + stage][2], strict=True)
        for own, (one, other) in zip(momenta, both, strict=True):
            torch.testing.assert_close(own, (one + other) / 2, rtol=1e-12, atol=1e-12)
    said = f"rank 0: {folder} was saved of a model in 2 stages, and this one is in one piece; "
    assert [text.startswith(said) for text in run(2, refused, folder)] == [True] * 2


def of_one_name(folder: Path) -> str:
    worker = Worker(2, renamed=True)
    with pytest.raises(UserError) as caught:
        localsgd.save(folder, worker.part, worker.optimizer)
    return str(caught.value)


def test_stages_whose_names_are_not_of_the_whole_are_refused(tmp_path: Path) -> None:
    said = "ranks 0 and 1 hold stages of one model, and both have 0.weight; make stages that keep"
    found = run(4, of_one_name, tmp_path / "save")
    assert [text.startswith(said) for text in found] == [True] * 4
    assert not localsgd.saved(tmp_path / "save")
