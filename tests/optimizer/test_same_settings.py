"""Settings of the inner optimizer that part between ranks while they train."""

from __future__ import annotations

import copy
import json
import time
import warnings
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from localsgd import LocalSGD
from localsgd.optimizer import same_settings
from localsgd.optimizer.same_settings import SameSettings
from tests.distributed.harness import run
from tests.optimizer.reference import loss_of, nesterov, net

PREFIX = "ranks train with different settings of the inner optimizer: "


def said_in(train: Any, seconds: float = 0.0) -> list[str]:
    with (
        mock.patch.object(same_settings, "TOLD_SECONDS", seconds),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        train()
    return [str(w.message) for w in caught]


def by_own_loss(ddp: bool, keywords: dict[str, Any]) -> list[str]:
    """After step 5 the third rank alone has another rate."""
    model: nn.Module = DistributedDataParallel(net()) if ddp else net()
    optimizer = LocalSGD(nesterov(model), model, **keywords)

    def train() -> None:
        for step in range(14):
            if step == 5 and dist.get_rank() == 2:
                optimizer.param_groups[0]["lr"] = 0.01
            optimizer.zero_grad()
            loss_of(model, dist.get_rank(), step).backward()
            optimizer.step()

    return said_in(train)


@pytest.mark.parametrize(
    ("ddp", "keywords"),
    [(False, {"local_steps": 4}), (False, {"local_steps": 1}), (True, {"local_steps": 1})],
)
def test_a_rate_that_parts_is_told_soon(ddp: bool, keywords: dict[str, Any]) -> None:
    """By the rank before it, and by itself, once each."""
    first, second, third = run(3, by_own_loss, ddp, keywords)
    assert first == []
    for said, equal in ((second, "rank 1"), (third, "rank 0")):
        [text] = said
        low = "rank 2 has 0.01"
        assert text.startswith(f"{PREFIX}lr: {equal} has 0.1, {low} at step ")
        assert int(text.partition("at step ")[2].partition(";")[0]) >= 6
        assert "\n" not in text


def in_meetings(setting: str) -> list[str]:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=4)

    def train() -> None:
        for step in range(6):
            if step == 5 and dist.get_rank() == 1:
                optimizer.param_groups[0][setting] = 0.01
            optimizer.zero_grad()
            loss_of(model, dist.get_rank(), step).backward()
            optimizer.step()
        with optimizer.averaged_model():
            pass
        optimizer.finish()

    return said_in(train, 1000.0)


@pytest.mark.parametrize(("setting", "usual"), [("lr", 0.1), ("momentum", 0.9)])
def test_where_ranks_meet_all_settings_are_compared(setting: str, usual: float) -> None:
    first, second = run(2, in_meetings, setting)
    [text] = first
    assert text.startswith(f"{PREFIX}{setting}: rank 0 has {usual}, rank 1 has 0.01 at step 6;")
    assert second == []


def scheduled_alike() -> list[str]:
    """A rate of its own at each step, ranks out of time, a copy that trains by another rate."""
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=8)
    twin, other = copy.deepcopy((model, optimizer))
    other.param_groups[0]["lr"] = 0.05
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)

    def train() -> None:
        for step in range(24):
            for one, each in ((model, optimizer), (twin, other)):
                each.zero_grad()
                loss_of(one, dist.get_rank(), step).backward()
                each.step()
            scheduler.step()
            time.sleep(0.01 * (step % 8 < 4) * (dist.get_rank() == step // 8 % 2))

    return said_in(train)


def test_equal_schedules_are_no_reason_to_speak() -> None:
    assert run(2, scheduled_alike) == [[], []]


class Store:
    """A presence of rank 0, whose neighbour leaves what a test says."""

    def __init__(self) -> None:
        self.rank, self.peers, self.told = 0, [0, 1], ""

    def numbered(self) -> int:
        return 1

    def leave(self, name: str, text: str) -> None:
        pass

    def left(self, name: str, rank: int) -> str | None:
        return self.told or None


def spoken(told: list[tuple[int, str]], loads: int = 0) -> list[str]:
    """Rates 0.1, 0.2, ... in steps 1, 2, ...; before each the neighbour may leave a text."""
    inner = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    store: Any = Store()
    same = SameSettings(inner, store)
    for _ in range(loads):
        same.loaded()

    def train() -> None:
        for step in range(1, 7):
            inner.param_groups[0]["lr"] = step / 10
            store.told = dict(told).get(step, "")
            same.stepped(step)

    return said_in(train)


@pytest.mark.parametrize("at", [1, 4, 6])
@pytest.mark.parametrize("of", [2, 4, 5])
def test_both_rates_are_of_one_step(at: int, of: int) -> None:
    """However far behind or ahead the neighbour is."""
    assert spoken([(at, f"[0, {of}, [{of / 10}]]")]) == []
    [text] = spoken([(at, f"[0, {of}, [0.7]]")])
    assert f"rank 0 has {of / 10}, rank 1 has 0.7 at step {of};" in text


def test_what_was_told_before_a_state_was_loaded_is_not_compared() -> None:
    assert spoken([(4, "[0, 2, [0.7]]")], loads=1) == []
    assert len(spoken([(4, "[1, 2, [0.7]]")], loads=1)) == 1


class OtherRank:
    """Rank 1 of two; rank 0 is two steps ahead, with another rate."""

    rank, peers = 1, range(2)

    def __init__(self) -> None:
        self.texts: list[str] = []

    def numbered(self) -> int:
        return 1

    def leave(self, name: str, text: str) -> None:
        self.texts.append(text)

    def left(self, name: str, rank: int) -> str:
        return json.dumps([0, 3, [0.2]])


def test_a_rank_that_has_warned_still_tells_its_rates() -> None:
    """The rank before it may not have noticed."""
    presence: Any = OtherRank()
    settings = SameSettings(torch.optim.SGD([torch.zeros(1)], lr=0.1), presence)
    with mock.patch.object(same_settings, "TOLD_SECONDS", 0.0):
        settings.stepped(1)
        settings.stepped(2)
        with pytest.warns(UserWarning, match="rank 0 has 0.2, rank 1 has 0.1 at step 3"):
            settings.stepped(3)
        settings.stepped(4)
    assert [json.loads(text)[1] for text in presence.texts] == [1, 2, 3, 4]
