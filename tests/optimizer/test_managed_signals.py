"""What schedules see while workers come and go: means over those who are averaged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from localsgd import LocalSGD
from localsgd.errors import UserError
from localsgd.schedule import Progress
from tests.optimizer.hall import Hall, Killed, Member

ROUNDS, H = 7, 2


class Recording:
    """Sees a number of each worker's own, and writes down what it sees."""

    sees = ("reported:wish", "waited")

    def __init__(self) -> None:
        self.seen: list[tuple[float | None, bool]] = []

    def __call__(self, progress: Progress) -> int:
        self.seen.append((progress.reported.get("wish"), progress.waited_seconds > 0))
        return H

    def __repr__(self) -> str:
        return "Recording()"


class Vector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(8, dtype=torch.float64))


def trained(hall: Hall, engine: Member, reports: bool = True) -> list[tuple[float | None, bool]]:
    """w2 is killed in the second sync, once all models are summed; w3 joins in the round after."""
    worker = int(engine.name[1:])
    model, schedule = Vector(), Recording()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = LocalSGD(inner, model, local_steps=schedule, fault_tolerance=engine)
    members = optimizer.membership
    assert members is not None

    def before(call: str) -> None:
        if call == "swap" and engine.syncs == 2:
            raise Killed

    if worker == 2:
        engine.before = before
    while members.syncs <= ROUNDS:
        optimizer.zero_grad()
        (model.w + worker).square().sum().backward()
        if reports:
            optimizer.report(wish=worker)
        optimizer.step()
        if worker == 0 and optimizer.steps == 2 * H + 1:
            hall.start(lambda engine: trained(hall, engine), "w3")
    return schedule.seen


def test_they_see_the_mean_of_those_who_are_averaged_however_often_a_sync_is_tried() -> None:
    hall = Hall()
    hall.start(lambda engine: trained(hall, engine), "w0", "w1", "w2")
    found: dict[str, Any] = hall.end()
    assert sorted(found) == ["w0", "w1", "w3"]
    # Of the round before the last: 0, 1 and 2; then 0 and 1, twice; then 0, 1 and 3.
    wishes = [None, None, 1.0, 0.5, 0.5, 4 / 3, 4 / 3, 4 / 3]
    assert [wish for wish, _ in found["w0"]] == wishes
    assert [waited for _, waited in found["w0"]] == [False, False] + [True] * 6
    assert found["w1"] == found["w0"]
    assert found["w3"] == found["w0"][-len(found["w3"]) :]
    assert len(found["w3"]) == ROUNDS + 1 - 3


def test_a_number_that_nobody_tells_is_an_error_and_ends_the_worker_alone() -> None:
    hall = Hall()
    hall.start(lambda engine: trained(hall, engine, reports=False), "w0")
    with pytest.raises(AssertionError, match="nobody has told it") as raised:
        hall.end()
    assert isinstance(raised.value.__cause__, UserError)
