"""Mistakes that differ between ranks, found at the start and named."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import localsgd
from localsgd import LocalSGD, UserError
from localsgd.optimizer.consistency import described
from localsgd.reduce import CompressedMean, Sign
from localsgd.rows.parts import digest_of_tensors
from tests.distributed.harness import run
from tests.optimizer.reference import loss_of, nesterov, net, values


def texts(mistakes: list[str]) -> list[str]:
    """The refusal of each mistake that the third of three ranks makes, on this rank."""
    found = []
    for mistake in mistakes:
        wrong = dist.get_rank() == 2
        model = net()
        keywords: dict[str, Any] = {"local_steps": 4}
        if wrong and mistake == "weights":
            with torch.no_grad():
                model[0].weight[0, 0] += 1e-9
        if wrong and mistake == "buffers":
            model[1].running_mean += 1
        if wrong and mistake == "frozen":
            model[3].bias.data += 1
        if wrong and mistake == "local_steps":
            keywords["local_steps"] = localsgd.post_local(4, after=1)
        if wrong and mistake == "average":
            keywords["average"] = "models"
        if mistake == "reducer":
            keywords["reducer"] = [CompressedMean(Sign("row" if wrong else "tensor"))]
        if wrong and mistake == "freezing":
            model[0].bias.requires_grad_(False)
        if wrong and mistake == "channels":
            model[0].weight.data = model[0].weight.data.t().contiguous().t()
        inner = nesterov(model)
        if wrong and mistake == "learning rate":
            inner.param_groups[0]["lr"] = 0.2
        if mistake == "learning rate as a tensor":
            inner.param_groups[0]["lr"] = torch.tensor(1.00001e-3 if wrong else 1e-3)
        if mistake == "betas as tensors":
            beta = torch.tensor(0.99900001 if wrong else 0.999, dtype=torch.float64)
            inner.param_groups[0]["betas"] = (0.9, beta)
        if wrong and mistake == "kind":
            inner = torch.optim.Adam(model.parameters())
        if wrong and mistake == "groups":
            last = inner.param_groups[0]["params"].pop()
            inner.add_param_group({"params": [last]})
        with pytest.raises(UserError) as caught:
            LocalSGD(inner, model, **keywords)
        found.append(str(caught.value))
    return found


LAYOUTS = "differ in names, shapes, memory formats or dtypes of parameters"
INNER = "differ in the inner optimizer or its settings"

MISTAKES = {
    "weights": "differ in starting weights; seed or load",
    "buffers": "differ in starting buffers; seed or load",
    "frozen": "differ in frozen parameters; seed or load",
    "local_steps": "differ in local_steps: ranks 0, 1 have (Every(local_steps=4),), rank 2 has (P",
    "average": "differ in average: ranks 0, 1 have auto, rank 2 has models; start all ranks with",
    "reducer": "differ in reducer: ranks 0, 1 have [CompressedMean(",
    "freezing": f"{LAYOUTS} (0.bias): ranks 0, 1 have (5,) of torch.float64, strides (1,), rank 2 "
    "has none; build the same model",
    "channels": f"{LAYOUTS} (0.weight): ranks 0, 1 have (5, 3) of torch.float64, strides (3, 1), "
    "rank 2 has (5, 3) of torch.float64, strides (1, 5); build the same model",
    "learning rate": f"{INNER} (lr): ranks 0, 1 have 0.1, rank 2 has 0.2; start all ranks",
    "learning rate as a tensor": f"{INNER} (lr): ranks 0, 1 have ('torch.float32', 0.00100",
    "betas as tensors": f"{INNER} (betas): ranks 0, 1 have ('tuple', [0.9, ('torch.float64', 0.999",
    "kind": f"{INNER} (kind): ranks 0, 1 have SGD, rank 2 has Adam; start all ranks with the same",
    "groups": f"{INNER} (lr): ranks 0, 1 have 0.1, rank 2 has none; start all ranks with the same",
}


def test_ranks_that_differ_are_named_on_all_of_them() -> None:
    for found in run(3, texts, list(MISTAKES)):
        for text, expected in zip(found, MISTAKES.values(), strict=True):
            assert text.startswith("rank 2 and rank 0 " + expected)
            assert "\n" not in text


def told() -> dict[str, torch.Tensor]:
    model = net()
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor += dist.get_rank()
    LocalSGD(nesterov(model), model, local_steps=4, start="broadcast")
    return values(model)


def test_broadcast_starts_all_from_rank_0() -> None:
    expected = values(net())
    for found in run(3, told):
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def first_step(same: bool, wrapped: bool, local_steps: int) -> list[str]:
    model: nn.Module = net()
    inner = nesterov(model)
    if wrapped:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = LocalSGD(inner, model, local_steps=local_steps)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, 0 if same else dist.get_rank(), step).backward()
            optimizer.step()
    return [str(w.message) for w in caught if "same batches" in str(w.message)]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("local_steps", [1, 2])
def test_ranks_that_see_the_same_batch_are_warned_of_once(wrapped: bool, local_steps: int) -> None:
    first, second = run(2, first_step, True, wrapped, local_steps)
    assert len(first) == 1
    assert "DistributedSampler" in first[0]
    assert "\n" not in first[0]
    assert second == []
    assert run(2, first_step, False, wrapped, local_steps) == [[], []]


def hidden_ddp(before: bool) -> str:
    """The refusal where DDP averages gradients and LocalSGD was not given it."""
    model = net()
    ddp = nn.parallel.DistributedDataParallel(model) if before else None
    optimizer = LocalSGD(nesterov(model), model, local_steps=4)
    ddp = ddp or nn.parallel.DistributedDataParallel(model)
    loss_of(ddp, dist.get_rank(), 0).backward()
    with pytest.raises(UserError) as caught:
        optimizer.step()
    return str(caught.value)


@pytest.mark.parametrize("before", [True, False])
def test_ddp_around_a_model_that_local_sgd_was_given_without_it(before: bool) -> None:
    for text in run(2, hidden_ddp, before):
        assert "DistributedDataParallel that LocalSGD was not given" in text
        assert "\n" not in text


def unused_ddp() -> int:
    """DDP of an earlier phase is still there, and trains nothing."""
    model = net()
    ddp = nn.parallel.DistributedDataParallel(model)
    loss_of(ddp, dist.get_rank(), 0).backward()
    optimizer = LocalSGD(nesterov(ddp.module), ddp.module, local_steps=2, start="broadcast")
    for step in range(2):
        optimizer.zero_grad()
        loss_of(ddp.module, dist.get_rank(), step).backward()
        optimizer.step()
    return optimizer.steps


def test_a_ddp_that_is_not_used_any_more_is_no_matter() -> None:
    assert run(2, unused_ddp) == [2, 2]


def test_a_digest_is_of_names_and_bits() -> None:
    zero = torch.zeros(2)
    assert digest_of_tensors([("a", zero)]) == digest_of_tensors([("a", torch.zeros(2))])
    assert digest_of_tensors([("a", zero)]) != digest_of_tensors([("b", zero)])
    assert digest_of_tensors([("a", zero)]) != digest_of_tensors([("a", -zero)])


def test_descriptions_leave_addresses_out() -> None:
    assert described(lambda: 0) == described(lambda: 0)


def after_unequal_steps() -> str:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=4)
    for _ in range(1 + dist.get_rank() % 2):
        loss_of(model, dist.get_rank(), 0).backward()
        optimizer.step()
    with pytest.raises(UserError) as caught:
        optimizer.finish()
    return str(caught.value)


def test_ranks_that_finish_after_unequal_steps() -> None:
    for text in run(3, after_unequal_steps):
        assert text.startswith(
            "ranks 0, 2 are in finish() at step 1, rank 1 is in finish() at step 2;"
        )


def test_an_address_is_no_folder() -> None:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=4)
    for call in (localsgd.save, localsgd.load):
        with pytest.raises(UserError, match="s3://bucket is an address, and a save needs a folder"):
            call("s3://bucket", model, optimizer)
    with pytest.raises(UserError, match="is an address"):
        localsgd.saved("s3://bucket")


def test_arguments_that_are_something_else() -> None:
    model = net()
    with pytest.raises(UserError, match="an optimizer and its model, not Sequential and SGD"):
        LocalSGD(model, nesterov(model), local_steps=4)  # type: ignore[arg-type]
    for timeout in (0, -1.0, "5", None, math.inf, math.nan, 1e300, True):
        with pytest.raises(UserError, match="is no time to wait; give seconds above 0"):
            LocalSGD(nesterov(model), model, local_steps=4, timeout=timeout)  # type: ignore[arg-type]


def test_an_unknown_start() -> None:
    model = net()
    with pytest.raises(UserError, match="start='zero' is unknown"):
        LocalSGD(nesterov(model), model, local_steps=1, start="zero")  # type: ignore[arg-type]


def late_mistakes() -> list[str]:
    """What is refused after a step that averages gradients, as after one that averages models."""
    found = []
    for mistake in ("unfrozen", "added", "assigned"):
        model = net()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        if mistake == "added":
            inner = torch.optim.SGD(model[0].parameters(), lr=0.1)
        optimizer = LocalSGD(inner, model, local_steps=1)
        if mistake == "unfrozen":
            model[3].bias.requires_grad_()
        if mistake == "added":
            inner.add_param_group({"params": model[1].parameters()})
        if mistake == "assigned":
            model.load_state_dict(net().state_dict(), assign=True)
        with pytest.raises(UserError) as caught:
            optimizer.step()
        found.append(str(caught.value))
    return found


def test_late_mistakes_while_gradients_are_averaged() -> None:
    for unfrozen, added, assigned in run(2, late_mistakes):
        assert "frozen when LocalSGD was made trains now" in unfrozen
        assert "given parameters since LocalSGD was made" in added
        assert "another tensor for" in assigned or "other memory" in assigned
