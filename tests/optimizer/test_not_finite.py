"""One rank's weights are not finite at a sync: the others' mean, and who it was."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from localsgd import LocalSGD, UserError, outer
from localsgd.reduce import CompressedMean, PowerSgd, Sign
from tests.distributed.harness import run

pytestmark = pytest.mark.timeout(120)


def trained(keywords: dict[str, Any], culprit: int, steps: int, dtype: torch.dtype) -> Any:
    """Weights fall by the rank's number + 1 at each step; the culprit's first gradient is NaN."""
    model = nn.Linear(16, 16, bias=False, dtype=dtype)  # without a gap in its row
    nn.init.zeros_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = LocalSGD(inner, model, **{"local_steps": 2, **keywords})
    said = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            model.weight.grad = torch.full_like(model.weight, dist.get_rank() + 1.0)
            if step == 0 and dist.get_rank() == culprit:
                model.weight.grad[0, 0] = torch.nan
            try:
                optimizer.step()
            except UserError as error:
                said = str(error)
    return model.weight.detach().clone(), said or "".join(str(w.message) for w in caught)


def assert_all(weights: Tensor, value: float) -> None:
    torch.testing.assert_close(weights, torch.full_like(weights, value), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("keywords", [{}, {"outer": [outer.sgd(1.0)]}])
def test_an_error_on_all_ranks_who_hold_the_mean_of_the_others(keywords: dict[str, Any]) -> None:
    for weights, said in run(3, trained, keywords, 1, 2, torch.float64):
        assert_all(weights, -4.0)  # of -2 and -6
        assert said.startswith("rank 1 had weights that are not finite in the sync at step 2,")


@pytest.mark.parametrize(
    ("ranks", "keywords", "dtype", "value"),
    [
        (3, {}, torch.float64, -4.0 - 4.0),
        (4, {"topology": "2x2", "local_steps": [1, 2]}, torch.float64, -4.75 - 5.0),
        (3, {"topology": "1+2", "local_steps": [1, 2]}, torch.float64, -13 / 3 - 4.0),
    ],
)
def test_the_others_go_on_with_their_mean_and_the_worker_with_it(
    ranks: int, keywords: dict[str, Any], dtype: torch.dtype, value: float
) -> None:
    keywords = {**keywords, "not_finite": "leave_out", "average": "models"}
    found = run(ranks, trained, keywords, 1, 4, dtype)
    for weights, _ in found:
        assert_all(weights, value)
    said = [said for _, said in found if said]
    assert any(re.match("rank 1 had weights that are not finite", text) for text in said)


@pytest.mark.parametrize("reducer", [CompressedMean(Sign()), PowerSgd(rank=1)])
def test_after_a_refusal_each_rank_holds_its_own_weights_or_the_anchor(reducer: Any) -> None:
    found = run(2, trained, {"reducer": [reducer]}, 1, 2, torch.float64)
    for rank, (weights, said) in enumerate(found):
        own = weights[1:]
        assert_all(own, -2.0 * (rank + 1) if isinstance(reducer, CompressedMean) else 0.0)
        assert "not finite" in said
    assert found[0][0].isfinite().all()


def shown() -> tuple[Tensor, Tensor]:
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = LocalSGD(inner, model, local_steps=4, not_finite="leave_out")
    model.weight.grad = torch.full_like(model.weight, torch.nan if dist.get_rank() else 1.0)
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with optimizer.averaged_model():
            inside = model.weight.detach().clone()
    return inside, model.weight.detach().clone()


def test_the_averaged_model_leaves_out_what_is_not_finite() -> None:
    (first, own), (second, others) = run(2, shown)
    assert_all(first, 0.0)
    assert_all(second, 0.0)
    assert_all(own, 0.0)
    assert others.isnan().all()
