"""Inner optimizers that communicate, and steps that go past `LocalSGD`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

from localsgd import LocalSGD, UserError, outer, post_local
from localsgd.optimizer.inner_optimizer import check_inner
from tests.distributed.harness import run
from tests.optimizer.reference import loss_of, net


class Holding(torch.optim.SGD):
    """Around another optimizer."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups[0]["params"], lr=0.1)
        self.held = inner


class Sharing(torch.optim.SGD):
    """Hands its updates round, and nothing about it says so."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                dist.all_reduce(parameter.detach().clone())
        return super().step(closure)


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)


def refused() -> list[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of torch, on import.
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
        from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
    model = net()
    weights = [p for p in model.parameters() if p.requires_grad]
    zero = ZeroRedundancyOptimizer(weights, optimizer_class=torch.optim.SGD, lr=0.1)
    averager = PeriodicModelAverager(period=4)
    grouped = torch.optim.SGD(weights, lr=0.1)
    grouped.param_groups[0]["group"] = dist.group.WORLD
    inners = [
        zero,
        Holding(zero),
        PostLocalSGDOptimizer(optim=torch.optim.SGD(weights, lr=0.1), averager=averager),
        grouped,
    ]
    texts = [refusal(lambda o=o: LocalSGD(o, model, local_steps=4)) for o in inners]
    optimizer = LocalSGD(Sharing(weights, lr=0.1), model, local_steps=4)
    loss_of(model, dist.get_rank(), 0).backward()
    before = model[0].weight.detach().clone()
    texts.append(refusal(optimizer.step))
    assert torch.equal(model[0].weight, before)
    names = [type(o).__name__ for o in inners] + ["Sharing"]
    return list(zip(names, texts, strict=True))


def test_inner_optimizers_that_communicate() -> None:
    for found in run(2, refused):
        for name, text in found:
            expected = "ZeroRedundancyOptimizer" if name == "Holding" else name
            assert f"is a {expected}, which communicates" in text
            assert "\n" not in text


def test_plain_inner_optimizers_of_one_s_own_are_taken() -> None:
    layer = nn.Linear(2, 2)
    first = Holding(torch.optim.SGD(layer.parameters(), lr=0.1))
    first.held.held = first  # type: ignore[attr-defined]
    check_inner(first, nn.Linear(1, 1))


def warned(texts: list[str], call: Callable[[], Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    texts += [str(w.message) for w in caught]


def left_on_inner() -> tuple[list[str], str]:
    """A loop that calls step() of the inner optimizer; then another, of LocalSGD."""
    model, texts = net(), list[str]()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = LocalSGD(inner, model, local_steps=4)
    for step in range(3):
        loss_of(model, dist.get_rank(), step).backward()
        warned(texts, inner.step)
    refused = refusal(optimizer.finish)
    again = LocalSGD(inner, model, local_steps=2, start="broadcast")
    for step in range(2):
        loss_of(model, dist.get_rank(), step).backward()
        warned(texts, again.step)
    again.finish()
    model.load_state_dict(net().state_dict())
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    replaced = LocalSGD(other, model, local_steps=2, start="broadcast")
    current = LocalSGD(other, model, local_steps=2)
    loss_of(model, dist.get_rank(), 0).backward()
    warned(texts, current.step)
    assert replaced.steps == 0
    return texts, refused


def test_a_loop_that_steps_the_inner_optimizer_is_told_once() -> None:
    (first, text), (second, other) = run(2, left_on_inner)
    assert len(first) == 1
    assert "step() of the inner optimizer was called directly" in first[0]
    assert second == []
    assert text == other
    assert "3 steps of the inner optimizer and none of LocalSGD" in text


def looked_at() -> tuple[int, list[str], bool]:
    """torch's tool makes a state by a step of its own, of LocalSGD or of the inner optimizer.

    That of LocalSGD it would cut short, so it is refused.
    """
    model, texts = net(), list[str]()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = LocalSGD(inner, model, local_steps=2)
    before = model[0].weight.detach().clone()
    with pytest.raises(UserError, match="drops what LocalSGD remembers"):
        warned(texts, lambda: get_state_dict(model, optimizer))
    inner.state.clear()
    warned(texts, lambda: get_state_dict(model, inner))
    return optimizer.steps, texts, torch.equal(before, model[0].weight)


def test_a_tool_that_steps_to_make_a_state_takes_no_step() -> None:
    assert run(2, looked_at) == [(0, [], True)] * 2


def warm_up() -> int:
    """A first step at a learning rate of 0 is one, also with gradients of 0."""
    model = net()
    inner = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer = LocalSGD(inner, model, local_steps=2)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer.steps


def test_a_step_at_a_learning_rate_of_0_counts() -> None:
    assert warm_up() == 1


class OwnRate(torch.optim.Optimizer):
    """Has no learning rate."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": None})

    def step(self, closure: Any = None) -> Any:
        return None


@pytest.mark.parametrize(
    "keywords",
    [{"local_steps": 2, "outer": [outer.slowmo()]}, {"local_steps": post_local(3)}],
    ids=["outer", "schedule"],
)
def test_a_learning_rate_of_none_where_it_is_needed(keywords: dict[str, Any]) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(UserError, match="learning rate is None"):
        LocalSGD(OwnRate(model.parameters()), model, **keywords)


def test_a_learning_rate_of_none_where_nobody_looks_at_it() -> None:
    model = nn.Linear(2, 2)
    optimizer = LocalSGD(OwnRate(model.parameters()), model, local_steps=2)
    for _ in range(4):
        optimizer.step()
    optimizer.finish()
