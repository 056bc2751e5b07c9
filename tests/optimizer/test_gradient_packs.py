"""Gradients averaged in packs before the step; scalers, clipping, closures on real processes."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from localsgd import LocalSGD, OrderedMean, UserError
from localsgd.optimizer import gradient_packs
from localsgd.optimizer.gradient_packs import packs_of
from localsgd.rows.model_rows import rows_of
from tests.distributed.crossing import Crossing
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, assert_same, loss_of, nesterov, net, values


def test_packs_hold_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_packs, "PACK_BYTES", 100 * 4)
    model = nn.ParameterList(nn.Parameter(torch.ones(n)) for n in (60, 40, 1, 300, 20, 20))
    (row,) = rows_of(model, torch.optim.SGD(model.parameters()), 16)
    sizes = [[p.numel() for p in pack.parameters] for pack in packs_of(row, 16)]
    assert sizes == [[60, 40], [1], [300], [20, 20]]


def train(
    keywords: dict[str, Any],
    pack_bytes: int = 2**20,
    dtypes: bool = False,
    layout: torch.memory_format = torch.contiguous_format,
) -> list[dict[str, Tensor]]:
    """Weights after each of six steps of Adam; the second layer in float32 where `dtypes`."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)).double()
    model.to(memory_format=layout)
    if dtypes:
        model[1].float()
    inner = torch.optim.Adam(model.parameters(), lr=0.1)
    with mock.patch.object(gradient_packs, "PACK_BYTES", pack_bytes):
        optimizer = LocalSGD(inner, model, **keywords)
    generator = torch.Generator().manual_seed(dist.get_rank())
    seen = []
    for _ in range(6):
        x = torch.randn(2, 3, 6, 6, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        model[1](model[0](x).to(model[1].weight.dtype)).square().mean().backward()
        optimizer.step()
        seen.append(values(model))
    optimizer.finish()
    return seen


def test_small_packs_and_channels_last_change_nothing() -> None:
    plain = run(2, train, {"local_steps": 1})
    packed = run(2, train, {"local_steps": 1}, 8)
    last = run(2, train, {"local_steps": 1}, 2**20, False, torch.channels_last)
    for rank in range(2):
        for expected, found, other in zip(plain[rank], packed[rank], last[rank], strict=True):
            assert_bits(found, expected)
            assert_same(other, expected)
    assert_bits(plain[0][-1], plain[1][-1])


def test_several_dtypes_have_a_row_each() -> None:
    first, second = run(2, train, {"local_steps": 2}, 2**20, True)
    for step in (1, 3, 5):
        assert_bits(first[step], second[step])
    for step in (0, 2, 4):
        for name in first[step]:
            assert not torch.equal(first[step][name], second[step][name]), name


def test_the_ordered_mean_averages_gradients_as_well() -> None:
    plain = run(2, train, {"local_steps": 1})
    ordered = run(2, train, {"local_steps": 1, "reducer": [OrderedMean()]})
    assert_same(ordered[0][-1], plain[0][-1])


def meshed() -> dict[str, Tensor]:
    mesh = init_device_mesh("cpu", (2, 2))
    return train({"local_steps": [1, 2], "topology": mesh})[-1]


def test_a_device_mesh_is_a_topology() -> None:
    named = run(4, train, {"local_steps": [1, 2], "topology": "2x2"})
    for found, expected in zip(run(4, meshed), named, strict=True):
        assert_bits(found, expected[-1])


def scaled(local_steps: int) -> tuple[list[dict[str, Tensor]], float, int]:
    """Six steps, with an overflow on rank 1 alone at step 2."""
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=local_steps)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    seen = []
    for step in range(6):
        optimizer.zero_grad()
        loss = loss_of(model, dist.get_rank(), step)
        if step == 2 and dist.get_rank() == 1:
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append(values(model))
    return seen, scaler.get_scale(), optimizer.ledger.levels[0].calls


def test_a_step_skipped_on_one_rank_in_a_local_phase() -> None:
    (first, scale, calls), (second, other_scale, other_calls) = run(2, scaled, 3)
    assert (scale, other_scale) == (2.0**10, 2.0**9)
    assert calls == other_calls == 2
    for name in first[2]:
        if "running" not in name:
            assert torch.equal(first[2][name], second[2][name])  # averaged, though one was skipped
            assert torch.isfinite(first[-1][name]).all()
    assert not torch.equal(first[1]["0.weight"], second[1]["0.weight"])


def test_a_step_skipped_on_all_ranks_while_gradients_are_averaged() -> None:
    results = run(2, scaled, 1)
    for seen, _, calls in results:
        assert calls == 6
        assert torch.equal(seen[2]["0.weight"], seen[1]["0.weight"])
        assert not torch.equal(seen[3]["0.weight"], seen[2]["0.weight"])
        assert torch.equal(seen[5]["0.weight"], results[0][0][5]["0.weight"])


def clipped() -> Tensor:
    """By the norm of the averaged gradient: (3, 4) and (-3, 4) have the mean (0, 4)."""
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=1.0), model, local_steps=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    x = torch.tensor([[3.0, 4.0]] if dist.get_rank() else [[-3.0, 4.0]], dtype=torch.float64)
    scaler.scale(model(x).sum()).backward()
    scaler.unscale_(optimizer)
    optimizer.average_gradients()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    return model.weight.detach()


def test_averaged_gradients_can_be_clipped() -> None:
    for weight in run(2, clipped):
        expected = torch.tensor([[0.0, -1.0]], dtype=torch.float64)
        torch.testing.assert_close(weight, expected, rtol=1e-5, atol=1e-12)


def added_to() -> list[Tensor]:
    """Backward passes after average_gradients(): of one tensor, of all, after a clip."""
    found = []
    for late in range(3):
        model = net()
        optimizer = LocalSGD(nesterov(model), model, local_steps=1)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, dist.get_rank(), step).backward()
            optimizer.average_gradients()
            if late == 2:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            part = model[3] if late == 1 else model
            sum(p.square().sum() * (1 + dist.get_rank()) for p in part.parameters()).backward()
            optimizer.step()
        found.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    return found


def test_what_a_backward_pass_adds_to_averaged_gradients_is_averaged() -> None:
    first, second = run(2, added_to)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    model = net()
    inner = nesterov(model)
    for step in range(2):  # The first case by hand: the mean of all gradients at each step.
        inner.zero_grad()
        sum(loss_of(model, rank, step) / 2 for rank in range(2)).backward()
        sum(p.square().sum() * 1.5 for p in model.parameters()).backward()
        inner.step()
    expected = nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.testing.assert_close(first[0], expected, rtol=1e-12, atol=1e-12)


def lbfgs(processes: int) -> tuple[dict[str, Tensor], float]:
    """All samples on one process, or a part on each; the loss is a mean over samples."""
    model = net()[3]
    model.bias.requires_grad_(True)
    inner = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    optimizer = LocalSGD(inner, model, local_steps=1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(8, 2, generator=generator, dtype=torch.float64)
    mine = slice(dist.get_rank(), None, processes)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[mine]), y[mine])
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(3)]
    return values(model), losses[-1]


def test_closures_see_mean_losses_and_gradients() -> None:
    ((expected, loss),) = run(1, lbfgs, 1)
    for found, mean_loss in run(2, lbfgs, 2):
        assert mean_loss == pytest.approx(loss, rel=1e-12)
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)


def sparse() -> bool:
    torch.manual_seed(0)
    model = nn.Embedding(4, 2, sparse=True)
    inner = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    optimizer = LocalSGD(inner, model, local_steps=1)
    (model(torch.tensor([dist.get_rank()])).sum() * (1 + dist.get_rank())).backward()
    with pytest.raises(UserError, match="weight has a sparse gradient"):
        optimizer.step()
    optimizer = LocalSGD(inner, model, local_steps=1, average="models")
    before = model.weight.detach().clone()
    optimizer.step()
    moved = (model.weight - before).abs().sum(1) > 0
    assert moved.tolist() == [True, True, False, False]
    return True


def test_sparse_gradients_are_refused_or_average_as_models() -> None:
    assert run(2, sparse) == [True, True]


def copied() -> bool:
    """A copy in the middle of a round goes on as the original does, on all ranks."""
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=3)

    def go(m: nn.Module, o: LocalSGD, first: int, last: int) -> None:
        for step in range(first, last):
            o.zero_grad()
            loss_of(m, dist.get_rank(), step).backward()
            o.step()

    go(model, optimizer, 0, 4)
    twin, other = copy.deepcopy((model, optimizer))
    go(model, optimizer, 4, 8)
    go(twin, other, 4, 8)
    assert_bits(values(twin), values(model))
    assert other.ledger.levels[0].calls == optimizer.ledger.levels[0].calls == 2
    return True


def test_a_copy_in_the_middle_of_a_round() -> None:
    assert run(2, copied) == [True, True]


def limits() -> list[timedelta]:
    found = []
    cases: list[dict[str, Any]] = [{}, {"timeout": 7.0}, {"timeout": timedelta(minutes=5)}]
    for keywords in cases:
        model = net()
        optimizer = LocalSGD(nesterov(model), model, local_steps=2, **keywords)
        world: Any = optimizer._placement.world
        found.append(world.group._get_backend(torch.device("cpu")).options._timeout)
    return found


def test_time_limits_outlast_a_round() -> None:
    expected = [timedelta(hours=2), timedelta(seconds=7), timedelta(minutes=5)]
    assert run(2, limits) == [expected, expected]


def averaged_twice() -> bool:
    """averaged_model() gives the same bits as finish(), and finish() once more changes nothing."""
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=[2, 2], topology="2x2")
    for step in range(7):
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), step).backward()
        optimizer.step()
    with pytest.raises(KeyError), optimizer.averaged_model():
        raise KeyError
    with optimizer.averaged_model():
        averaged = values(model)
    optimizer.finish()
    assert_same(values(model), averaged)
    finished = values(model)
    with Crossing() as crossed:
        optimizer.finish()
    assert crossed.names == []
    assert_bits(values(model), finished)
    with optimizer.averaged_model():
        assert_same(values(model), finished)
    return True


def test_finish_is_the_averaged_model_and_harmless_again() -> None:
    assert run(4, averaged_twice) == [True] * 4


def given_up() -> dict[str, Tensor]:
    """Two steps; before the second, gradients are averaged and then dropped."""
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=1)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), step).backward()
        if step == 1:
            optimizer.average_gradients()
            continue
        optimizer.step()
    return values(model)


def test_averaged_gradients_that_are_dropped_leave_the_next_ones_to_be_averaged() -> None:
    first, second = run(2, given_up)
    assert_bits(*({n: v for n, v in one.items() if "running" not in n} for one in (first, second)))


def set_by_hand() -> float:
    """Averaged gradients are dropped, and the next are made without a backward pass."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=1.0), model, local_steps=1)
    for gradient in (torch.nan, dist.get_rank() + 1.0):
        optimizer.zero_grad()
        model.weight.grad = torch.full_like(model.weight, gradient)
        optimizer.average_gradients()
    optimizer.zero_grad()
    model.weight.grad = torch.full_like(model.weight, dist.get_rank() + 1.0)
    optimizer.step()
    return model.weight.item()


def test_gradients_that_are_set_by_hand_after_some_were_dropped_are_averaged() -> None:
    assert run(2, set_by_hand) == [-1.5, -1.5]


def loaded_by_another() -> dict[str, Tensor]:
    """Models are averaged after each step, then whatever `auto` takes."""
    model = net()
    before = LocalSGD(nesterov(model), model, local_steps=1, average="models")
    for step in range(3):
        before.zero_grad()
        loss_of(model, dist.get_rank(), step).backward()
        before.step()
    other = net()
    after = LocalSGD(nesterov(other), other, local_steps=1)
    other.load_state_dict(model.state_dict())
    after.load_state_dict(before.state_dict())
    for step in range(3, 6):
        after.zero_grad()
        loss_of(other, dist.get_rank(), step).backward()
        after.step()
    return values(other)


def test_momenta_that_differ_are_not_taken_for_shared_ones() -> None:
    first, second = run(2, loaded_by_another)
    assert_bits(*({n: v for n, v in one.items() if "running" not in n} for one in (first, second)))
