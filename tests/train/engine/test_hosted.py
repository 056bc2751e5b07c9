"""The workers of one process: separate models in rows, and steps that equal torch's own."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from localsgd.inner import Clip, GradientNoise
from localsgd.train.engine.hosted import Inner, Workers
from tests.cases import Assembled, Case, carried_out, close, same_bits
from tests.problems import loss_on, net


def sgd(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=1.0, momentum=0.9)


def different_samples(model: nn.Module, worker: int, step: int) -> Tensor:
    return loss_on(model, torch.arange(4) + 10 * worker + step)


def workers_on(model: nn.Module, count: int = 3, **inner: Any) -> Workers:
    return Workers(model, different_samples, Inner(sgd, **inner), range(count))


def test_workers_start_alike_and_part() -> None:
    workers = workers_on(net("conv"))
    assert torch.equal(workers.params, workers.params[:1].expand_as(workers.params))
    workers.backward()
    workers.apply(0.1)
    assert workers.step == 1
    assert not torch.equal(workers.params[0], workers.params[1])


def test_models_and_gradients_are_views_of_rows() -> None:
    model = net("conv")
    workers = workers_on(model)
    assert workers.models[0] is model
    for row, own in enumerate(workers.models):
        for parameter in own.parameters():
            assert parameter.untyped_storage().data_ptr() == (
                workers.params.untyped_storage().data_ptr()
            )
            assert parameter.grad is not None
            assert parameter.grad.stride() == parameter.stride()
        workers.params[row] = row
        assert all(parameter.eq(row).all() for parameter in own.parameters())


def places_of_gradients(workers: Workers) -> list[int]:
    gradients = [p.grad for model in workers.models for p in model.parameters()]
    return [gradient.data_ptr() for gradient in gradients if gradient is not None]


def test_rows_stay_where_they_are_through_steps() -> None:
    workers = workers_on(net("conv"))
    places = [p.data_ptr() for model in workers.models for p in model.parameters()]
    gradients = places_of_gradients(workers)
    for _ in range(3):
        workers.backward()
        workers.apply(0.1)
    assert places == [p.data_ptr() for model in workers.models for p in model.parameters()]
    assert gradients == places_of_gradients(workers)


def test_what_lies_between_tensors_stays_zero() -> None:
    workers = workers_on(net("conv"), weight_decay=0.1)
    used = torch.zeros(workers.layout.length, dtype=torch.bool)
    for view in workers.layout.views(used).values():
        view.fill_(True)
    for _ in range(3):
        workers.backward()
        workers.apply(0.1)
    assert not used.all()
    assert workers.params[:, ~used].eq(0).all()


def test_noise_of_gradients_leaves_what_lies_between_tensors_alone() -> None:
    noise = GradientNoise(0.01, seed=3)
    workers = Workers(
        net("conv"), different_samples, Inner(sgd), range(2), transforms=[noise, Clip(1.0)]
    )
    inside = torch.zeros(workers.layout.length, dtype=torch.bool)
    for view in workers.layout.views(inside).values():
        view.fill_(True)
    plain = workers_on(net("conv"), 2)
    for each in (workers, plain):
        each.backward()
    assert not inside.all()
    assert workers.grads[:, ~inside].eq(0).all()
    # g + noise, the same for all, then cut to a norm of 1; of what lies in tensors alone.
    drawn = torch.zeros(workers.layout.length, dtype=torch.float64)
    noise(drawn, 0, 0)
    for row, gradient in zip(workers.grads, plain.grads, strict=True):
        noisy = gradient + drawn
        clipped = noisy * (1 / (noisy.norm() + 1e-6)).clamp(max=1.0)
        torch.testing.assert_close(row[inside], clipped[inside], rtol=1e-12, atol=1e-12)
    workers.apply(0.1)
    assert workers.params[:, ~inside].eq(0).all()


def test_gradients_do_not_pile_up() -> None:
    workers = workers_on(net("plain"))
    workers.backward()
    once = workers.grads.clone()
    workers.backward()
    assert torch.equal(workers.grads, once)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_rows_stepped_as_vectors_are_tensors_stepped_one_by_one(decay: float) -> None:
    case = Case("3", net="conv", momentum=0.9, nesterov=True, weight_decay=decay)
    same_bits(carried_out(case), carried_out(replace(case, elementwise=False)))


def test_spared_parameters_do_not_decay() -> None:
    model = net("conv")
    spared = {name for name, _ in model.named_parameters() if name.startswith(("1.", "4."))}
    inner = Inner(sgd, weight_decay=0.5, no_decay=spared)
    workers = Workers(
        model, lambda model, worker, step: 0 * loss_on(model, torch.arange(4)), inner, [0]
    )
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    workers.backward()
    workers.apply(0.1)
    for name, parameter in model.named_parameters():
        shrunk = before[name] * (1.0 if name in spared else 0.95)
        torch.testing.assert_close(parameter.detach(), shrunk, rtol=1e-14, atol=1e-14)


class Tied(nn.Module):
    """One matrix used twice, one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.second = nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(3, dtype=torch.float64), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh()) * self.frozen


def test_tied_weights_are_one_slot_and_frozen_ones_none() -> None:
    torch.manual_seed(0)
    model, reference = Tied(), Tied()
    reference.load_state_dict(model.state_dict())

    def loss(model: nn.Module, worker: int, step: int) -> Tensor:
        return model(torch.eye(3, dtype=torch.float64) + worker).square().sum()

    workers = Workers(model, loss, Inner(sgd), [0, 1])
    assert [slot.name for slot in workers.layout.slots] == ["first.weight"]
    for own in workers.models:
        assert own.get_submodule("first").weight is own.get_submodule("second").weight
    optimizer = torch.optim.SGD([reference.first.weight], lr=0.05, momentum=0.9)
    for _ in range(3):
        workers.backward()
        workers.apply(0.05)
        optimizer.zero_grad()
        loss(reference, 0, 0).backward()
        optimizer.step()
    torch.testing.assert_close(model.first.weight, reference.first.weight, rtol=1e-13, atol=0)
    assert model.frozen.eq(1).all()


def test_channels_last_stays() -> None:
    model: Any = net("conv")
    model.to(memory_format=torch.channels_last)
    workers = workers_on(model)
    workers.backward()
    workers.apply(0.1)
    for own in workers.models:
        weight: Any = own.get_submodule("3").weight
        assert weight.is_contiguous(memory_format=torch.channels_last)
        assert not weight.is_contiguous()
        assert weight.grad.is_contiguous(memory_format=torch.channels_last)


def test_buffers_are_each_workers_own() -> None:
    workers = workers_on(net("conv"))
    workers.backward()
    means = [dict(model.named_buffers())["1.running_mean"] for model in workers.models]
    assert not torch.equal(means[0], means[1])
    counts = [dict(model.named_buffers())["1.num_batches_tracked"] for model in workers.models]
    assert [count.item() for count in counts] == [1, 1, 1]
    dtypes = {layout.dtype for layout, _ in workers.buffers}
    assert dtypes == {torch.float64, torch.int64}
    for _, rows in workers.buffers:
        rows.zero_()
    assert all(buffer.eq(0).all() for model in workers.models for buffer in model.buffers())


def test_state_moves_a_worker_to_another_row() -> None:
    one, other = workers_on(net("conv"), 2), workers_on(net("conv"), 2)
    for _ in range(2):
        one.backward()
        one.apply(0.1)
    for row in range(2):
        other.load(row, copy.deepcopy(one.state(row)))
    other.step = one.step
    for workers in (one, other):
        workers.backward()
        workers.apply(0.05)
    assert torch.equal(one.params, other.params)
    for (_, left), (_, right) in zip(one.buffers, other.buffers, strict=True):
        assert torch.equal(left, right)


def test_losses_are_summed_until_they_are_taken() -> None:
    workers = workers_on(net("plain"), 2)
    workers.backward()
    workers.backward()
    sums, steps = workers.take_losses()
    with torch.no_grad():
        expected = [2 * different_samples(m, k, 0).item() for k, m in enumerate(workers.models)]
    assert steps == [2, 2]
    assert sums.tolist() == pytest.approx(expected, rel=1e-14)
    assert not any(workers.take_losses()[1])
    assert workers.loss_sums.eq(0).all()


def test_other_processes_host_the_same_workers() -> None:
    case = Case("4", net="conv", momentum=0.9, steps=1)
    close(carried_out(case, 2).buffers, carried_out(case).buffers)
    assert Assembled.of(case).workers.ids == (0, 1, 2, 3)
