"""Error memory while workers come and go, for every reducer that has one: none of it is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from localsgd import LocalSGD
from localsgd.reduce import CompressedMean, Int8, PowerSgd, Reducer, Sign, TopK
from tests.optimizer.hall import Hall, Killed, Member

ROUNDS, H, RATE, SHAPE = 8, 2, 0.1, (6, 5)

REDUCERS = [
    CompressedMean(Sign(), way="gather"),
    CompressedMean(Int8()),
    CompressedMean(TopK(0.2)),
    PowerSgd(rank=1),
]


def wanted(worker: int) -> Tensor:
    return torch.sin(torch.arange(30, dtype=torch.float64) * (worker + 1)).view(SHAPE)


class Matrix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(SHAPE, dtype=torch.float64))


@dataclass
class Seen:
    """After a sync."""

    model: Tensor
    error: Tensor | None
    directions: Tensor | None
    averaged: list[str]


def trained(hall: Hall, engine: Member, reducer: Reducer) -> dict[int, Seen]:
    """w2 is killed inside the third sync of models, and w3 joins in the round after."""
    worker = int(engine.name[1:])
    model = Matrix()
    inner = torch.optim.SGD(model.parameters(), lr=RATE)
    optimizer = LocalSGD(inner, model, local_steps=H, reducer=reducer, fault_tolerance=engine)
    members: Any = optimizer.membership
    [level] = optimizer._models.levels  # type: ignore[attr-defined]
    found: dict[int, Seen] = {}

    def before(call: str) -> None:
        if call == "sum" and engine.syncs == 3:
            raise Killed

    def see() -> None:
        error = level.reducer.state().get("error")
        found[members.syncs] = Seen(
            model.w.detach().clone(),
            None if error is None else error[0, 0, :30].clone().view(SHAPE),
            None if (q := level.reducer.state().get("q")) is None else q.clone(),
            [name.split(":")[0] for name in members.averaged],
        )

    if worker == 2:
        engine.before = before
    see()
    while members.syncs <= ROUNDS:
        optimizer.zero_grad()
        (model.w - wanted(worker)).square().sum().mul(0.5).backward()
        optimizer.step()
        if optimizer.at_sync:
            see()
        if worker == 0 and optimizer.steps == 3 * H + 1:
            hall.start(lambda engine: trained(hall, engine, reducer), "w3")
    return found


@pytest.mark.parametrize("reducer", REDUCERS, ids=str)
def test_what_is_sent_and_what_is_kept_add_up(reducer: Reducer) -> None:
    hall = Hall()
    hall.start(lambda engine: trained(hall, engine, reducer), "w0", "w1", "w2")
    seen: dict[str, dict[int, Seen]] = hall.end()
    first = seen["w0"]
    for sync in range(2, ROUNDS + 2):
        here = [own[sync] for own in seen.values() if sync in own]
        assert all(one.model.equal(here[0].model) for one in here)
        if here[0].directions is not None:
            assert all(one.directions.equal(here[0].directions) for one in here)
        before, after = first[sync - 1], first[sync]
        if "w2" in before.averaged + after.averaged:
            continue  # It can't tell what it had.
        moved = len(after.averaged) * (before.model - after.model)
        had = torch.zeros(SHAPE, dtype=torch.float64)
        for name in after.averaged:
            w = before.model.clone()
            for _ in range(H):
                w -= RATE * (w - wanted(int(name[1:])))
            had += before.model - w
            kept = seen[name][sync - 1].error
            if kept is not None:
                had += len(after.averaged) / len(before.averaged) * kept
            now = seen[name][sync].error
            assert now is not None
            moved += now
        torch.testing.assert_close(moved, had, rtol=0, atol=1e-12)
    assert [first[s].averaged for s in (3, 4, 5, 6)] == [
        ["w0", "w1", "w2"],
        ["w0", "w1"],
        ["w0", "w1"],
        ["w0", "w1", "w3"],
    ]
    assert first[ROUNDS + 1].error is not None
    assert first[ROUNDS + 1].error.abs().max() > 0


def spoilt(engine: Member) -> list[float]:
    """The buffer after each of three rounds; w1 meets NaN in the first one."""
    model = Matrix()
    model.register_buffer("shown", torch.zeros(1, dtype=torch.float64))
    inner = torch.optim.SGD(model.parameters(), lr=RATE)
    optimizer = LocalSGD(
        inner, model, local_steps=1, not_finite="leave_out", fault_tolerance=engine
    )
    found = []
    for step in range(3):
        bad = step == 1 and engine.name == "w1"
        model.shown += torch.nan if bad else 1.0
        model.w.grad = torch.full_like(model.w, torch.nan if bad else 1.0)
        optimizer.step()
        found.append(float(model.shown))
    return found


def test_buffers_of_a_guest_become_those_of_the_others() -> None:
    hall = Hall()
    hall.start(spoilt, "w0", "w1")
    assert hall.end() == {"w0": [1.0, 2.0, 3.0], "w1": [1.0, 2.0, 3.0]}
