"""Buffers of the averaged model, worked out by hand and against numpy."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from localsgd.averaging.buffers import KeptBuffers, mean_buffers, put_buffers
from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.errors import UserError
from localsgd.wire import InProcess
from tests.distributed.harness import run


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


class Holder(nn.Module):
    def __init__(self, buffer: torch.Tensor, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("odd", buffer, persistent=persistent)


def test_masks_that_differ_are_those_of_worker_0() -> None:
    masks = [torch.tensor([0.0, 1.0, 1.0]), torch.tensor([1.0, 0.0, 1.0])]
    found = mean_buffers([Holder(mask) for mask in masks], InProcess(2))
    assert found["odd"].tolist() == [0.0, 1.0, 1.0]
    masks[1][2] = 0.5  # no mask any more
    found = mean_buffers([Holder(mask) for mask in masks], InProcess(2))
    assert found["odd"].tolist() == [0.5, 0.5, 0.75]


def test_statistics_are_no_masks() -> None:
    models: list[Any] = [nn.BatchNorm1d(1) for _ in range(2)]
    models[0].running_mean.fill_(1.0)
    found = mean_buffers(models, InProcess(2))
    assert found["running_mean"].item() == 0.5
    assert found["running_var"].item() == 1.25


def test_narrow_floats_are_codes_and_those_of_worker_0() -> None:
    models = [Holder(torch.full((2,), x).to(torch.float8_e5m2)) for x in (1.0, 4.0)]
    assert mean_buffers(models, InProcess(2))["odd"].float().tolist() == [1.0, 1.0]


def test_an_expanded_buffer_takes_the_mean() -> None:
    models = [Holder(torch.tensor([x]).expand(3)) for x in (1.0, 3.0)]
    put_buffers(models[0], mean_buffers(models, InProcess(2)))
    assert models[0].odd.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (torch.ones(2), torch.ones(3), "odd .* differs in dtype or shape between worker 1"),
        (torch.ones(2), torch.ones(2).double(), "differs in dtype or shape"),
        (torch.ones(2), torch.ones(2).to_sparse(), "odd .* between worker 1 and worker 0"),
        (torch.eye(2).to_sparse(), torch.ones(2, 2).to_sparse(), "only plain dense tensors"),
    ],
)
def test_buffers_that_have_no_mean(first: torch.Tensor, second: torch.Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        mean_buffers([Holder(first), Holder(second)], InProcess(2))
    mean_buffers([Holder(first, False), Holder(second, False)], InProcess(2))


def test_workers_with_unequal_numbers_of_buffers() -> None:
    models = [Holder(torch.ones(2)), Holder(torch.ones(2))]
    models[1].register_buffer("more", torch.ones(2))
    with pytest.raises(UserError, match="have 1 to 2 buffers"):
        mean_buffers(models, InProcess(2))


def test_odd_buffers_that_are_equal_stay() -> None:
    models = [Holder(torch.eye(2).to_sparse()) for _ in range(2)]
    own = models[0].odd
    put_buffers(models[0], mean_buffers(models, InProcess(2)))
    assert models[0].odd is own


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("change", ["written", "resized", "replaced", "deleted", "none"])
def test_kept_buffers_come_back(change: str, persistent: bool) -> None:
    model: Any = Holder(torch.tensor([1.0, 2.0]), persistent)
    model.register_buffer("empty", None)
    own = model.odd
    kept = KeptBuffers(model)
    if change == "written":
        model.odd += 1
    elif change == "resized":
        model.odd.resize_(5).fill_(7)
    elif change == "replaced":
        model.odd = torch.zeros(4)
    elif change == "deleted":
        del model.odd
    else:
        model.odd = None
    model.empty = torch.ones(1)
    kept.restore()
    assert model.odd is own
    assert own.tolist() == [1.0, 2.0]
    assert model.empty is None


def normalised(*numbers: tuple[float, float]) -> list[Any]:
    """Layers with these running means and variances, and a mask of 0 and -inf."""
    models: list[Any] = []
    for number, (mean, variance) in enumerate(numbers):
        model = nn.BatchNorm1d(2, dtype=torch.float64)
        model.running_mean.copy_(torch.tensor([mean, 7.0]))
        model.running_var.copy_(torch.tensor([variance, 1.0]))
        model.num_batches_tracked.fill_(number)
        model.register_buffer("causal", torch.full((2, 2), -torch.inf).triu(1))
        models.append(model)
    return models


BAD = [(torch.nan, 1.0), (1.0, 2.0), (5.0, 4.0), (9.0, torch.inf)]


def test_a_worker_that_is_not_finite_is_left_out_of_all_buffers() -> None:
    found = mean_buffers(normalised(*BAD), InProcess(4))
    assert found["running_mean"].tolist() == [3.0, 7.0]
    assert found["running_var"].tolist() == [3.0 + 4.0, 1.0]
    assert found["num_batches_tracked"].item() == 1  # of the first that is not left out
    assert found["causal"].tolist() == [[0.0, -torch.inf], [0.0, 0.0]]


def of_process(numbers: list[tuple[float, float]]) -> dict[str, torch.Tensor]:
    placement = placement_of(Topology.parse(len(numbers)))
    models = normalised(*numbers)
    return mean_buffers([models[worker] for worker in placement.workers], placement.world)


@pytest.mark.parametrize("numbers", [BAD, BAD[1:3] * 2])
def test_processes_give_the_bits_of_one(numbers: list[tuple[float, float]]) -> None:
    here = mean_buffers(normalised(*numbers), InProcess(4))
    for processes in (2, 4):
        for there in run(processes, of_process, numbers):
            assert there.keys() == here.keys()
            assert all(torch.equal(there[name], here[name]) for name in here)


def test_what_is_not_finite_on_all_workers_leaves_nobody_out() -> None:
    found = mean_buffers(normalised((torch.nan, 1.0), (torch.nan, 3.0)), InProcess(2))
    assert found["running_mean"][0].isnan()
    assert found["running_mean"][1] == 7.0
    assert found["causal"].tolist() == [[0.0, -torch.inf], [0.0, 0.0]]
    holders = [Holder(torch.tensor([-torch.inf, number])) for number in (1.0, 4.0)]
    assert mean_buffers(holders, InProcess(2))["odd"].tolist() == [-torch.inf, 2.5]
