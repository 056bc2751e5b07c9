"""While gradients are averaged, workers hold equal models and equal inner states."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import localsgd
from localsgd import LocalSGD, Progress
from localsgd.errors import UserError
from localsgd.optimizer.start import digest_of_state
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, loss_of, nesterov, net, values


def trained(model: Any, optimizer: LocalSGD, steps: int) -> None:
    rank = dist.get_rank() if dist.is_initialized() else 0
    for step in range(optimizer.steps, optimizer.steps + steps):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()


def alone(folder: str) -> None:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=1, average="gradients")
    trained(model, optimizer, 3)
    localsgd.save(folder, model, optimizer)


def joined(folder: str) -> tuple[dict[str, Tensor], list[Tensor]]:
    model = net()
    inner = nesterov(model)
    optimizer = LocalSGD(inner, model, local_steps=1, average="gradients")
    localsgd.load(folder, model, optimizer)
    trained(model, optimizer, 2)
    momenta = [inner.state[p]["momentum_buffer"] for p in model.parameters() if p.requires_grad]
    optimizer.finish()  # makes buffers equal
    return values(model), momenta


def test_a_worker_that_was_alone_has_been_in_lockstep(tmp_path: Any) -> None:
    """Others that join it go on averaging gradients, so that momenta stay equal too."""
    folder = str(tmp_path / "save")
    run(1, alone, folder)
    (first, momenta), (second, others) = run(2, joined, folder)
    assert_bits(first, second)
    assert all(map(torch.equal, momenta, others))


def unequal_states(average: Any) -> None:
    model = net()
    inner = nesterov(model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            start = torch.full_like(parameter, float(dist.get_rank()))
            inner.state[parameter]["momentum_buffer"] = start
    trained(model, LocalSGD(inner, model, local_steps=1, average=average), 1)


def refused_unless_models_are_averaged() -> str:
    with pytest.raises(UserError) as caught:
        unequal_states("auto")
    unequal_states("models")
    return str(caught.value)


def test_unequal_inner_states_are_refused_where_models_would_part_for_good() -> None:
    for said in run(2, refused_unless_models_are_averaged):
        assert said.startswith("rank 1 and rank 0 differ in states of the inner optimizer; ")
        assert said.endswith('load the same state on all ranks, or choose average="models"')


def test_states_of_any_kind_are_compared_by_their_bits() -> None:
    """L-BFGS has lists of tensors, of which a text would show the ends alone."""
    model = nn.Linear(2000, 1, bias=False)
    digests = set()
    for value in (1.0, 5.0, 5.0):
        inner = torch.optim.LBFGS(model.parameters())
        direction = torch.ones(2000)
        direction[1000] = value
        inner.state[model.weight] = {"old_dirs": [direction], "n_iter": 1, "prev_loss": None}
        digests.add(digest_of_state(inner))
    assert len(digests) == 2


class Judging:
    """H = 2, judged by a loss that must be told."""

    sees = ("loss",)

    def __call__(self, progress: Progress) -> int:
        return 2


def told_later() -> tuple[list[int], list[int], Any, dict[str, Tensor]]:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=Judging())
    failed = []
    for step in range(8):
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), step).backward()
        if step >= 4:
            optimizer.report_loss(1.0)
        try:
            optimizer.step()
        except UserError:
            failed.append(step)
    syncs, at_sync = [*optimizer._loop.syncs], optimizer.at_sync
    optimizer.finish()  # makes buffers equal
    return failed, syncs, at_sync, values(model)


def test_rounds_go_on_after_a_schedule_has_failed_between_two() -> None:
    """The sync that it failed after counts: all hold the mean. Later ones come as they should."""
    (failed, syncs, at_sync, first), (*_, second) = run(2, told_later)
    assert failed
    assert syncs == [4]
    assert at_sync
    assert_bits(first, second)


def frozen_later() -> bool:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=1)
    model[0].requires_grad_(False)
    loss_of(model, dist.get_rank(), 0).backward()
    optimizer.average_gradients()
    optimizer.step()
    return model[0].weight.grad is None


def test_gradients_are_averaged_without_what_was_frozen_meanwhile() -> None:
    assert run(2, frozen_later) == [True, True]


def wide_gradients() -> str:
    model = nn.Linear(64, 1, bias=False, dtype=torch.bfloat16)
    model.weight.data.fill_(1.0)
    model.weight.grad_dtype = torch.float32
    optimizer = LocalSGD(torch.optim.SGD(model.parameters(), 0.1), model, local_steps=1)
    model.weight.grad = torch.ones(1, 64)
    with pytest.raises(UserError) as caught:
        optimizer.average_gradients()
    return str(caught.value)


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has no grad_dtype")
def test_gradients_wider_than_their_parameter_are_not_rounded() -> None:
    for said in run(2, wide_gradients):
        assert said.startswith("weight is torch.bfloat16 and its gradient torch.float32")


def on_another_device() -> list[Tensor]:
    """As a program that has `torch.set_default_device("cuda")`."""
    model = net()
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # All have the same gradients.
        optimizer = LocalSGD(nesterov(model), model, local_steps=1)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = parameter.detach().clone()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def test_the_first_step_is_taken_whatever_the_default_device() -> None:
    first, second = run(2, on_another_device)
    assert all(map(torch.equal, first, second))
