"""Weights that a user sets between steps, where a level keeps an anchor."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from localsgd import Delay, LocalSGD, UserError, outer
from localsgd.reduce import CompressedMean, Sign
from tests.distributed.harness import run
from tests.optimizer.reference import loss_of, net


def local_sgd(model: nn.Module, **keywords: Any) -> LocalSGD:
    inner = torch.optim.SGD(model.parameters(), lr=0.0)
    return LocalSGD(inner, model, **{"local_steps": 2, **keywords})


def steps(model: nn.Module, optimizer: LocalSGD, count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), optimizer.steps).backward()
        optimizer.step()


def set_to(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def weights(model: nn.Module) -> set[float]:
    trained = [p for p in model.parameters() if p.requires_grad]
    return set(nn.utils.parameters_to_vector(trained).tolist())


ANCHORED: list[dict[str, Any]] = [
    {"outer": [outer.sgd(0.5)]},
    {"reducer": [CompressedMean(Sign())]},
    {"outer": [outer.sgd(0.5), None], "topology": "1x2", "local_steps": [2, 1]},
]


def set_at_a_start() -> list[set[float]]:
    """Nothing is trained (γ = 0), so weights stay what they were set to."""
    found = []
    for keywords in ANCHORED:
        model = net()
        optimizer = local_sgd(model, **keywords)
        steps(model, optimizer, 4)
        set_to(model, 100.0)
        steps(model, optimizer, 4)
        found.append(weights(model))
    model = net()
    optimizer = local_sgd(model, outer=[outer.sgd(0.5)], delay=Delay(2, 1))
    steps(model, optimizer, 3)
    optimizer.finish()  # Nothing is under way any more.
    set_to(model, 100.0)
    steps(model, optimizer, 9)
    optimizer.finish()
    found.append(weights(model))
    return found


def test_weights_that_are_set_at_the_start_of_a_round_are_the_new_anchor() -> None:
    for found in run(2, set_at_a_start):
        assert found == [{100.0}] * (len(ANCHORED) + 1)


def set_on_one_rank(same: bool) -> str:
    """Rank 1 sets other weights, or rank 0 puts its own back."""
    model = net()
    optimizer = local_sgd(model, outer=[outer.sgd(0.5)])
    steps(model, optimizer, 2)
    if same:
        if dist.get_rank() == 0:
            model.load_state_dict({name: t.clone() for name, t in model.state_dict().items()})
        steps(model, optimizer, 2)
        return ""
    if dist.get_rank() == 1:
        set_to(model, 100.0)
    steps(model, optimizer, 1)
    with pytest.raises(UserError) as caught:
        steps(model, optimizer, 1)
    return str(caught.value)


def test_weights_that_are_set_on_one_rank_are_refused_on_all() -> None:
    for text in run(2, set_on_one_rank, False):
        assert text.startswith("rank 1 and rank 0 differ in weights that were set between steps")
        assert "\n" not in text
    assert run(2, set_on_one_rank, True) == ["", ""]


def set_in_mid_round(keywords: dict[str, Any]) -> list[str]:
    model = net()
    optimizer = local_sgd(model, local_steps=4, **keywords)
    steps(model, optimizer, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            set_to(model, 100.0)
            steps(model, optimizer, 1)
    return [str(w.message) for w in caught]


def test_weights_that_are_set_in_mid_round_are_warned_of_once() -> None:
    for found in run(2, set_in_mid_round, {"outer": [outer.sgd(0.5)]}):
        (text,) = found
        assert "weights were set between steps in the middle of a round" in text
        assert "finish()" in text
    assert run(2, set_in_mid_round, {}) == [[], []]  # no anchor, nothing undone


class Words(nn.Module):
    """Its forward pass writes its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 2, max_norm=0.5, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x)


def renormalised() -> int:
    model = Words()
    optimizer = LocalSGD(
        torch.optim.SGD(model.parameters(), lr=1.0),
        model,
        local_steps=2,
        outer=[outer.sgd(1.5)],
        start="broadcast",
    )
    for _ in range(6):
        optimizer.zero_grad()
        rank = dist.get_rank()
        (model(torch.tensor([rank])).sum() * (1 + rank)).backward()
        optimizer.step()
    return optimizer.steps


def test_weights_that_a_forward_pass_writes_are_progress() -> None:
    assert run(2, renormalised) == [6, 6]


def resumed() -> list[str]:
    """A state is loaded in mid-round, weights before or after it."""
    found = []
    for weights_first in (True, False):
        model = net()
        optimizer = local_sgd(model, local_steps=4, outer=[outer.sgd(0.5)])
        steps(model, optimizer, 2)
        saved = {name: t.clone() for name, t in model.state_dict().items()}
        state = optimizer.state_dict()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if weights_first:
                model.load_state_dict(saved)
            optimizer.load_state_dict(state)
            if not weights_first:
                model.load_state_dict(saved)
            steps(model, optimizer, 4)
        found += [str(w.message) for w in caught]
    return found


def test_a_state_that_is_loaded_is_no_mistake() -> None:
    assert run(2, resumed) == [[], []]
