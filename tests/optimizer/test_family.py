"""What came after 2020, in a loop of one's own, on four processes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from localsgd import LocalSGD, UserError, adacomm, qsr, waiting_below
from localsgd.averaging.placement import row_multiple
from localsgd.reduce import CompressedMean, MajorityVote, PowerSgd, Reducer, Sign
from localsgd.rows.layout import Layout
from localsgd.rows.model_rows import rows_of
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, loss_of, net, values


def local(make: Any, keywords: dict[str, Any], steps: int = 6, model: Any = None) -> LocalSGD:
    model = model or net()
    optimizer = LocalSGD(make(model.parameters()), model, **keywords)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, dist.get_rank(), step)
        loss.backward()
        optimizer.report_loss(loss)
        optimizer.step()
    return optimizer


def moments() -> dict[str, Any]:
    found: dict[str, Any] = {}
    adam = lambda parameters: torch.optim.Adam(parameters, lr=0.01)  # noqa: E731
    for rule in ("", "exp_avg=average", "exp_avg_sq=reset:2", "all=average:2"):
        optimizer = local(adam, {"local_steps": 3, "inner_state": rule})
        state = next(iter(optimizer.state.values()))
        found[rule] = {key: state[key].clone() for key in ("exp_avg", "exp_avg_sq")}
    return found


def test_moments_are_kept_averaged_or_reset() -> None:
    ranks = run(4, moments)
    kept = torch.stack([rank[""]["exp_avg"] for rank in ranks])
    assert not torch.equal(kept[0], kept[1])
    for rank in ranks:
        assert torch.equal(
            rank["exp_avg=average"]["exp_avg"], ranks[0]["exp_avg=average"]["exp_avg"]
        )
        assert rank["exp_avg_sq=reset:2"]["exp_avg_sq"].eq(0).all()
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(rank["all=average:2"][key], ranks[0]["all=average:2"][key])
    second = torch.stack([rank["exp_avg=average"]["exp_avg_sq"] for rank in ranks])
    assert not torch.equal(second[0], second[1])


def ledgers(rule: str, told: bool) -> tuple[list[Any], list[Any]]:
    """Of a run, and of one that is saved and resumed after every step."""
    keywords: dict[str, Any] = {"local_steps": 2, "inner_state": rule}
    if told:
        keywords["local_steps"] = adacomm(2, period=2)
    adam = lambda parameters: torch.optim.Adam(parameters, lr=0.01)  # noqa: E731
    whole = local(adam, keywords, steps=8)
    model = net()
    optimizer = LocalSGD(adam(model.parameters()), model, **keywords)
    for step in range(8):
        optimizer.zero_grad()
        loss = loss_of(model, dist.get_rank(), step)
        loss.backward()
        optimizer.report_loss(loss)
        optimizer.step()
        twin = net()
        resumed = LocalSGD(adam(twin.parameters()), twin, **keywords)
        twin.load_state_dict(model.state_dict())
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        model, optimizer = twin, resumed
    assert_bits(values(model), values(whole.model))
    both = (whole.ledger.levels, optimizer.ledger.levels)
    return tuple([(e.calls, e.bytes, e.arrived) for e in levels] for levels in both)  # type: ignore


@pytest.mark.parametrize("rule", ["all=average", "exp_avg=average:2", "all=reset", ""])
@pytest.mark.parametrize("told", [False, True])
def test_a_resumed_run_has_the_ledger_of_the_uninterrupted_one(rule: str, told: bool) -> None:
    for whole, resumed in run(2, ledgers, rule, told):
        assert whole == resumed


def adaptive() -> dict[str, Any]:
    """The number of syncs with each schedule, and the model at the end."""
    found: dict[str, Any] = {}
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.05)  # noqa: E731
    for name, schedule in (
        ("adacomm", adacomm(4, period=4)),
        ("qsr", qsr(1, 0.1, longest=4)),
        ("waiting", waiting_below(0.05)),
    ):
        optimizer = local(sgd, {"local_steps": schedule, "average": "models"}, steps=24)
        optimizer.finish()
        [[level]] = optimizer._models._stacks
        found[name] = level.syncs, values(optimizer.model)
    return found


def test_ranks_choose_the_same_rounds_from_losses_and_times_of_their_own() -> None:
    ranks = run(4, adaptive)
    for name in ranks[0]:
        for rank in ranks:
            assert rank[name][0] == ranks[0][name][0], name
            assert_bits(rank[name][1], ranks[0][name][1])
    # (0.1/0.05)² = 4, once the rate has been averaged, at the third round of one step.
    assert ranks[0]["qsr"][0] == 2 + 5 + 1


COMPRESSING: list[Callable[[Layout | None], Reducer]] = [
    lambda layout: CompressedMean(Sign(), layout=layout),
    lambda layout: MajorityVote(layout=layout),
    lambda layout: PowerSgd(layout, rank=1),
    lambda layout: CompressedMean(Sign("row"), layout=layout),
]


def compressed() -> list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    """The model after two rounds with each reducer: left to itself, and told of the layout."""
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.05)  # noqa: E731
    [row] = rows_of(model := net(), sgd(model.parameters()), row_multiple(4))
    return [
        tuple(
            values(local(sgd, {"local_steps": 2, "reducer": [make(layout)]}, steps=4).model)
            for layout in (None, row.layout)
        )
        for make in COMPRESSING
    ]


def test_compressors_learn_where_the_tensors_of_the_users_model_lie() -> None:
    for rank in run(4, compressed):
        for found, told in rank:
            assert_bits(found, told)
        by_tensor, *_, by_row = (found["0.weight"] for found, _ in rank)
        assert not torch.equal(by_tensor, by_row)


def between_blocks() -> torch.Tensor:
    """PowerSGD over slices of 7 scalars, in blocks of 2."""
    model = nn.Linear(8, 7, bias=False)
    optimizer = LocalSGD(
        torch.optim.SGD(model.parameters(), lr=0.01),
        model,
        local_steps=[1, 2],
        topology="2x2",
        reducer=[None, PowerSgd(rank=1)],
    )
    for step in range(2):
        optimizer.zero_grad()
        model(torch.full((2, 8), 1.0 + dist.get_rank() + step)).square().sum().backward()
        optimizer.step()
    return model.weight.detach()


def test_power_sgd_between_blocks_of_processes() -> None:
    weights = run(4, between_blocks)
    assert all(torch.equal(weight, weights[0]) for weight in weights)


class Matrices(nn.Module):
    """Two layers without biases, which Muon can step."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x).relu())


def with_muon() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = Matrices()
    optimizer = LocalSGD(
        torch.optim.Muon(model.parameters(), lr=0.02),
        model,
        local_steps=2,
        inner_state="momentum_buffer=average",
    )
    for step in range(4):
        optimizer.zero_grad()
        draw = torch.Generator().manual_seed(10 * step + dist.get_rank())
        model(torch.randn(6, 3, generator=draw)).square().sum().backward()
        optimizer.step()
    states = torch.cat([s["momentum_buffer"].flatten() for s in optimizer.state.values()])
    return {"states": states, **values(model)}


def test_muon_takes_local_steps() -> None:
    ranks = run(2, with_muon)
    assert_bits(ranks[0], ranks[1])


def test_a_loss_that_nobody_tells_is_asked_for() -> None:
    model = nn.Linear(2, 1)
    optimizer = LocalSGD(
        torch.optim.SGD(model.parameters(), lr=0.1), model, local_steps=adacomm(2, 4)
    )
    model(torch.ones(1, 2)).sum().backward()
    for _ in range(3):  # a first round may end before its loss is told
        optimizer.step()
    with pytest.raises(UserError, match=r"call optimizer.report_loss\(loss\)"):
        optimizer.step()
