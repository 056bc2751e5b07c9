"""Modules that are replaced, wrapped or added after `LocalSGD` was made."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from localsgd import LocalSGD, UserError
from tests.distributed.harness import run

pytestmark = pytest.mark.timeout(200)


class Tied(nn.Module):
    """A trunk of blocks, and a head with the weight of the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(3, 3)
        self.head.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        for block in (self.first, *self.blocks, self.head):
            x = block(x)
        return x


class Wrapper(nn.Module):
    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x)


def replaced(model: Any) -> None:
    model.blocks[1] = nn.Sequential(nn.Linear(3, 3), nn.Tanh())


def replaced_inside(model: Any) -> None:
    model.blocks[1][0] = nn.Linear(3, 3)


def removed(model: Any) -> None:
    del model.blocks[1]


def wrapped(model: Any) -> None:
    model.blocks[1] = Wrapper(model.blocks[1])


def untied(model: Any) -> None:
    bias = model.head.bias
    model.head = nn.Linear(3, 3)
    model.head.bias = bias


def added(model: Any) -> None:
    model.blocks.append(nn.Linear(3, 3))


def after(change: Any, call: str, local_steps: int) -> tuple[str, list[str]]:
    """What is raised, and what warned of, where a model changes after its first steps."""
    torch.manual_seed(0)
    model = Tied()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = LocalSGD(inner, model, local_steps=local_steps)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.full((1, 3), 1.0 + dist.get_rank() + optimizer.steps)).sum().backward()
            optimizer.step()

    def shown() -> None:
        with optimizer.averaged_model():
            pass

    calls = {"step": lambda: None, "finish": optimizer.finish, "averaged_model": shown}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(2)
        change(model)
        try:
            train(2 if call == "step" else 1)
            calls[call]()
        except UserError as error:
            return str(error), [str(w.message) for w in caught]
    return "", [str(w.message) for w in caught]


@pytest.mark.parametrize(
    ("change", "call", "local_steps"),
    [
        (replaced, "step", 2),
        (replaced, "step", 1),
        (replaced, "finish", 2),
        (replaced, "averaged_model", 2),
        (replaced_inside, "step", 2),
        (removed, "step", 2),
    ],
)
def test_a_model_that_lost_parameters_is_refused(change: Any, call: str, local_steps: int) -> None:
    for said, _ in run(2, after, change, call, local_steps):
        assert said.startswith("the model has lost blocks.1.0.weight, which LocalSGD averages:")
        assert "\n" not in said


def test_a_module_may_be_wrapped() -> None:
    assert run(2, after, wrapped, "step", 2) == [("", [])] * 2


@pytest.mark.parametrize(("change", "name"), [(untied, "head.weight"), (added, "blocks.2.weight")])
def test_parameters_that_came_later_are_told(change: Any, name: str) -> None:
    (first, [text]), second = run(2, after, change, "step", 2)
    assert f"have gradients and are in no LocalSGD (such as {name})" in text
    assert (first, second) == ("", ("", []))
