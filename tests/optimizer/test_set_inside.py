"""Weights that are set inside `averaged_model()`, and would be undone without a word."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from localsgd import LocalSGD
from tests.distributed.harness import run
from tests.optimizer.reference import loss_of, nesterov, net

UNDONE = "weights were set inside averaged_model(), which puts each rank's own back at its end;"
LEFT = "weights were set inside averaged_model(), which leaves them as they are at its end"


def nothing(model: Any) -> None:
    loss_of(model, 0, 0)


def loaded(model: Any) -> None:
    model.load_state_dict({n: torch.ones_like(t) for n, t in model.state_dict().items()})


def one_filled(model: Any) -> None:
    nn.init.zeros_(model[0].weight)


def swapped(model: Any) -> None:
    """As an average of weights is evaluated: in and out."""
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    loaded(model)
    model.load_state_dict(own)


def raised(model: Any) -> None:
    loaded(model)
    raise KeyError("data")


def inside(change: Callable[[Any], None], steps: int, times: int) -> list[str]:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=2)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), step).backward()
        optimizer.step()
    before = [p.detach().clone() for p in model.parameters() if p.requires_grad]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(times):
            try:
                with optimizer.averaged_model():
                    change(model)
            except KeyError:
                pass
    if steps % 2:
        after = [p for p in model.parameters() if p.requires_grad]
        assert all(map(torch.equal, before, after))
    return [str(w.message) for w in caught]


@pytest.mark.parametrize("change", [loaded, one_filled])
def test_weights_that_are_set_inside_are_told_once(change: Any) -> None:
    for steps, expected in ((3, UNDONE), (4, LEFT)):
        [text], others = run(2, inside, change, steps, 2)
        assert text.startswith(expected)
        assert "\n" not in text
        assert others == []


@pytest.mark.parametrize("change", [nothing, swapped, raised])
def test_others_are_not(change: Any) -> None:
    assert run(2, inside, change, 3, 1) == [[], []]


class Words(nn.Module):
    """Its forward pass writes its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 2, max_norm=0.5)
        self.last = nn.Linear(2, 1)


def renormalised() -> list[str]:
    torch.manual_seed(0)
    model = Words()
    optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=1.0), model, local_steps=2)
    model.last(model.embed(torch.tensor([dist.get_rank()]))).sum().backward()
    optimizer.step()
    with warnings.catch_warnings(record=True) as caught, optimizer.averaged_model():
        warnings.simplefilter("always")
        before = model.embed.weight.detach().clone()
        model.embed(torch.arange(4))
        assert not torch.equal(before, model.embed.weight)
    return [str(w.message) for w in caught]


def test_a_forward_pass_may_write() -> None:
    assert run(2, renormalised) == [[], []]
