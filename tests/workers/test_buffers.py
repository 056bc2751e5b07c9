"""Buffers of the agreed model, worked out by hand and against numpy."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from localsgd.collective import InProcess
from localsgd.workers.buffers import mean_buffers, put_buffers


def test_the_variance_has_a_term_between_workers() -> None:
    models: list[Any] = [nn.BatchNorm1d(1, dtype=torch.float64) for _ in range(2)]
    for model, mean, variance in zip(models, (1.0, 5.0), (2.0, 4.0), strict=True):
        model.running_mean.fill_(mean)
        model.running_var.fill_(variance)
    found = mean_buffers(models, InProcess(2))
    assert found["running_mean"].tolist() == [3.0]
    assert found["running_var"].tolist() == [3.0 + 4.0]


def test_statistics_of_a_mixture_are_those_of_its_parts() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=1.0)).double()
    models: list[Any] = [copy.deepcopy(net) for _ in range(5)]
    inputs = [torch.randn(7, 3, dtype=torch.float64) + k for k in range(5)]
    for model, x in zip(models, inputs, strict=True):
        model(x)
        model[1].running_var *= 6 / 7  # the biased variance, for which the law is exact
    found = mean_buffers(models, InProcess(5))
    every = net[0](torch.cat(inputs)).detach()
    torch.testing.assert_close(found["1.running_mean"], every.mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        found["1.running_var"], every.var(0, correction=0), rtol=1e-12, atol=1e-12
    )


class Odd(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.register_buffer("low", torch.full((3,), float(number), dtype=torch.bfloat16))
        self.register_buffer("mask", torch.tensor([number > 0, True]))
        self.register_buffer("spread", torch.tensor(float(number)).expand(2, 2))
        self.register_buffer("count", torch.tensor(number))
        self.register_buffer("roots", torch.tensor([1j * number]))
        self.same = nn.Module()
        self.same.register_buffer("tied", self.count)


def test_other_buffers_are_averaged_or_those_of_worker_0() -> None:
    models = [Odd(0), Odd(2), Odd(7)]
    found = mean_buffers(models, InProcess(3))
    assert list(found) == ["low", "mask", "spread", "count", "roots"]
    assert found["low"].dtype == torch.bfloat16
    assert found["low"].tolist() == [3.0] * 3
    assert found["spread"].tolist() == [[3.0] * 2] * 2
    assert found["mask"].tolist() == [False, True]
    assert found["count"].item() == 0
    assert found["roots"].tolist() == [0j]
    assert models[2].count.item() == 7  # nobody's own buffers change


def test_one_worker_keeps_its_bits() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.BatchNorm2d(4))
    model(torch.randn(5, 4, 3, 3))
    found = mean_buffers([model], InProcess(1))
    for name, buffer in model.named_buffers():
        assert torch.equal(found[name], buffer)


def test_a_model_without_buffers_sends_nothing() -> None:
    class Silent:
        members = 2

    assert mean_buffers([nn.Linear(2, 2)], Silent()) == {}  # type: ignore[arg-type]


def test_what_is_no_part_of_the_state_dict_stays_a_workers_own() -> None:
    models: list[Any] = [nn.Sequential(nn.BatchNorm1d(1)) for _ in range(2)]
    for number, model in enumerate(models):
        model[0].register_buffer("carried", torch.full((number + 1,), 3.0), persistent=False)
        model[0].running_mean.fill_(number)
    found = mean_buffers(models, InProcess(2))  # shapes may even differ
    assert list(found) == ["0.running_mean", "0.running_var", "0.num_batches_tracked"]
    put_buffers(models[1], found)
    assert models[1][0].running_mean.item() == 0.5
    assert models[1][0].carried.tolist() == [3.0, 3.0]
