"""The first decay, told from warm-up and cosine, and seen by all ranks at the same step."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from localsgd import LocalSGD, UserError, outer, post_local
from localsgd.schedule.progress import Observing, Progress, Schedule, seen_by
from localsgd.schedule.signals import FirstDecay
from tests.distributed.crossing import Crossing
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, loss_of, net, values


def seen(rates: Iterable[float]) -> FirstDecay:
    decay = FirstDecay()
    for rate in rates:
        decay.see(rate)
        decay.check()
    return decay


def test_a_warm_up_is_no_decay_and_a_fall_to_a_tenth_is_one() -> None:
    warm = [0.1 * step / 5 for step in range(1, 6)]
    assert not seen(warm + [0.1] * 20).decayed
    assert seen(warm + [0.1] * 20 + [0.01]).decayed


def test_half_is_not_below_half() -> None:
    assert not seen([0.1, 0.05]).decayed
    assert seen([0.1, 0.05, 0.025]).decayed


def test_it_stays_decayed_when_the_rate_rises_again() -> None:
    assert seen([0.1, 0.01, 0.2]).decayed


@pytest.mark.parametrize(
    "rates",
    [
        [0.1 * (1 + math.cos(math.pi * step / 200)) / 2 for step in range(200)],
        [0.1 * 0.97 ** (step // 10) for step in range(200)],
        [0.1 * (1 - step / 200) for step in range(200)],
    ],
    ids=["cosine", "exponential", "linear"],
)
def test_a_rate_that_falls_all_the_time_is_refused(rates: list[float]) -> None:
    with pytest.raises(UserError, match="falls little by little") as caught:
        seen(rates)
    assert "localsgd.epochs" in str(caught.value)


def test_a_rate_that_is_back_at_its_highest_has_not_fallen() -> None:
    """Restarts after two small falls, which would be three with those before."""
    assert not seen([0.1, 0.09, 0.08] * 5).decayed
    assert not seen([0.1, 0.09, 0.08, 0.12, 0.11, 0.1]).decayed
    assert not seen([0.1, 0.09, 0.095, 0.08, 0.085]).decayed
    with pytest.raises(UserError, match="in 3 falls"):
        seen([0.1, 0.09, 0.095, 0.08, 0.085, 0.07])


def test_a_steep_fall_in_few_steps_is_a_decay() -> None:
    assert seen([0.1, 0.08, 0.06, 0.04]).decayed


def picture_of(rates: list[float], keywords: dict) -> str:
    """Where this rank averaged, with `rates[t]` as the learning rate of step t."""
    model = net()
    inner = torch.optim.SGD(model.parameters(), lr=rates[0])
    optimizer = LocalSGD(inner, model, average="models", **keywords)
    drawn = ""
    for step, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), step).backward()
        [[level]] = optimizer._models._stacks
        before = level.syncs
        optimizer.step()
        drawn += "." + "1" * (level.syncs - before)
    return drawn


def own_rates() -> tuple[str, dict]:
    """Rank 1 decays two steps after rank 0; below half of the mean with the second."""
    decays = 4 + 2 * dist.get_rank()
    rates = [0.1 if step < decays else 0.01 for step in range(16)]
    return picture_of(rates, {"local_steps": post_local(3)}), {}


def test_ranks_that_decay_at_different_steps_switch_together_two_steps_after_the_mean() -> None:
    (first, _), (second, _) = run(2, own_rates)
    # The mean of 0.01 and 0.1 is above half of 0.1; step 6 is the first at which both are low.
    assert first == second == ".1" * 8 + "...1" * 2 + ".."


class Waiting:
    """H = 2 once anybody has waited."""

    def __call__(self, progress: Progress) -> int:
        return 2 if progress.waited_seconds > 0 else 1


def seconds() -> str:
    return picture_of([0.1] * 6, {"local_steps": Waiting()})


def test_schedules_see_the_seconds_waited_averaged() -> None:
    assert run(2, seconds) == [".1.1..1..1"] * 2


def crossing(schedule: Schedule) -> list[str]:
    """All that crosses in 6 steps after the first, at which gradients are compared."""
    model = net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = LocalSGD(inner, model, average="models", local_steps=schedule)
    loss_of(model, dist.get_rank(), 0).backward()
    optimizer.step()
    with Crossing() as crossed:
        for _ in range(6):
            optimizer.step()
    return crossed.names


def test_nothing_is_sent_for_schedules_of_the_step() -> None:
    for names in run(2, crossing, post_local(3, after=4)):
        assert names == ["allreduce_"] * 4  # after steps 2, 3, 4 and 7: models, and nothing else


def falls_always() -> str:
    with pytest.raises(UserError, match="falls little by little") as caught:
        picture_of([0.1 * 0.99**step for step in range(20)], {"local_steps": post_local(3)})
    return str(caught.value)


def test_all_ranks_refuse_at_once() -> None:
    first, second = run(2, falls_always)
    assert first == second


RATES = [0.1 if step < 5 else 0.02 for step in range(14)]


def made(momentum: bool) -> tuple[nn.Module, LocalSGD]:
    model = net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    outers = [outer.block_momentum(0.3)] if momentum else None
    return model, LocalSGD(inner, model, local_steps=post_local(3), outer=outers)


def go(model: nn.Module, optimizer: LocalSGD, first: int, last: int) -> None:
    for step in range(first, last):
        for group in optimizer.param_groups:
            group["lr"] = RATES[step]
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), step).backward()
        optimizer.step()


def cut_everywhere(momentum: bool) -> dict:
    """The uninterrupted run, to which one saved and resumed after every step is compared."""
    model, optimizer = made(momentum)
    go(model, optimizer, 0, len(RATES))
    finished: dict[str, Tensor] = {}
    for cut in range(1, len(RATES)):
        first, saved = made(momentum)
        go(first, saved, 0, cut)
        file = io.BytesIO()
        torch.save([first.state_dict(), saved.state_dict()], file)
        weights, state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        second, resumed = made(momentum)
        second.load_state_dict(weights)
        resumed.load_state_dict(state)
        assert [(e.calls, e.bytes) for e in resumed.ledger.levels] == [
            (e.calls, e.bytes) for e in saved.ledger.levels
        ]
        go(second, resumed, cut, len(RATES))
        assert_bits(values(second), values(model))
        assert resumed._loop.position == optimizer._loop.position
        resumed.finish()
        finished = values(second)
    optimizer.finish()
    assert_bits(finished, values(model))
    return optimizer.state_dict()["local_sgd"]["position"]


@pytest.mark.parametrize("momentum", [False, True], ids=["plain", "block momentum"])
def test_a_resumed_run_is_the_uninterrupted_one(momentum: bool) -> None:
    assert run(2, cut_everywhere, momentum)[0]["lengths"] == [3]


def in_steps(local_steps: Any, ddp: bool, rates: list[float]) -> tuple[list[int], list[int], int]:
    """Calls of each step, H after it, and how many flags came with gradients."""
    model = net()
    wrapped = DistributedDataParallel(model) if ddp else model
    inner = torch.optim.SGD(model.parameters(), lr=rates[0])
    optimizer = LocalSGD(inner, wrapped, local_steps=local_steps)
    calls, lengths, carried = [], [], 0
    exchange = optimizer._reports.signals.exchange

    def counted(own: Tensor, told: Tensor | None = None) -> None:
        nonlocal carried
        carried += told is not None
        exchange(own, told)

    with mock.patch.object(optimizer._reports.signals, "exchange", counted):
        for step, rate in enumerate(rates):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            before = optimizer.ledger.levels[0].calls
            loss_of(wrapped, dist.get_rank(), step).backward()
            optimizer.step()
            calls.append(optimizer.ledger.levels[0].calls - before)
            lengths += optimizer._loop.position.lengths
    return calls, lengths, carried


@pytest.mark.parametrize("ddp", [False, True], ids=["alone", "ddp"])
def test_the_default_switch_rides_on_the_gradients(ddp: bool) -> None:
    """At H = 1 it costs no call. Seen one step late, it opens rounds of 3 at step 5."""
    rates = [0.1] * 4 + [0.01] * 6
    for calls, lengths, carried in run(2, in_steps, post_local(3), ddp, rates):
        assert lengths == [1] * 5 + [3] * 5
        assert carried == 6
        # Afterwards a sync of models, and beside it the flags.
        assert calls == [1] * 6 + [0, 0, 2, 0]
    for calls, _, carried in run(2, in_steps, 1, ddp, rates):
        assert (calls, carried) == ([1] * 10, 0)


def apart(decays: list[int], falls: list[int]) -> tuple[list[int], str]:
    """H by step, or the error. Ranks in `decays` decay at step 2; those in `falls` creep."""
    rank = dist.get_rank()
    rates = [0.1 * 0.99**step if rank in falls else 0.1 for step in range(8)]
    if rank in decays:
        rates[2:] = [0.01] * 6
    try:
        return in_steps(post_local(2), False, rates)[1], ""
    except UserError as error:
        return [], str(error)


def test_more_than_half_of_the_workers_decide_the_switch() -> None:
    assert run(4, apart, [0, 1], []) == [([1] * 8, "")] * 4
    assert run(4, apart, [0, 1, 3], []) == [([1] * 3 + [2] * 5, "")] * 4


def test_a_rate_that_creeps_on_one_rank_ends_all() -> None:
    found = run(2, apart, [], [1])
    assert ["another rank" in error for _, error in found] == [True, False]
    assert all("falls little by little" in error for _, error in found)


@dataclass(frozen=True)
class ByNorm(Observing):
    """H = 1 while the gradient is longer than `limit`, then 4."""

    limit: float
    sees = ("reported:gradient_norm",)

    def __call__(self, progress: Progress) -> int:
        return 4 if progress.reported.get("gradient_norm", math.inf) < self.limit else 1


NORMS = [[8.0, 6.0, 5.0, 1.0] + [0.5] * 8, [4.0, 4.0, 3.0, 2.0] + [1.5] * 8]
"""By rank and step: their means are 6, 5, 4, 1.5 and then 1."""


def reported(cut: int | None = None) -> tuple[str, list[float | None]]:
    """Where this rank averaged, and what its schedule saw at each step; saved and loaded at one."""
    seen: list[float | None] = []

    class Watching(ByNorm):
        def __call__(self, progress: Progress) -> int:
            seen.append(progress.reported.get("gradient_norm"))
            return super().__call__(progress)

    def make() -> tuple[nn.Module, LocalSGD]:
        model = net()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, LocalSGD(inner, model, average="models", local_steps=Watching(1.25))

    model, optimizer = make()
    drawn = ""
    for step, norm in enumerate(NORMS[dist.get_rank()]):
        if step == cut:
            saved = [copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())]
            drawn = ""
            model, optimizer = make()
            del seen[:]
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), step).backward()
        optimizer.report(gradient_norm=torch.tensor(norm), not_looked_at=math.nan)
        [[level]] = optimizer._models._stacks
        before = level.syncs
        optimizer.step()
        drawn += "." + "1" * (level.syncs - before)
    return drawn, seen


def test_numbers_of_ones_own_reach_a_schedule_as_means_over_workers_and_steps() -> None:
    for drawn, seen in run(2, reported):
        # Told at the sync of one step, they are there at the next one's.
        assert seen[:6] == [None, None, 6.0, 5.0, 4.0, 1.5]
        assert seen[6:] == [1.0, 1.0]
        assert drawn == ".1" * 6 + "...." + "1" + ".."


@pytest.mark.parametrize("cut", [4, 8])
def test_numbers_of_ones_own_go_on_where_a_run_was_saved(cut: int) -> None:
    whole, resumed = run(2, reported), run(2, reported, cut)
    for (drawn, seen), (later, seen_later) in zip(whole, resumed, strict=True):
        assert drawn.endswith(later)
        assert seen[len(seen) - len(seen_later) :] == seen_later


def test_a_schedule_whose_number_nobody_reports_says_so() -> None:
    model = net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = LocalSGD(inner, model, average="models", local_steps=ByNorm(1.0))

    def train() -> None:
        for step in range(4):
            loss_of(model, 0, step).backward()
            optimizer.step()

    with pytest.raises(UserError, match=r"judges by gradient_norm, .* optimizer.report\(gradient"):
        train()


@pytest.mark.parametrize("name", ["reported:", "reported:a b", "reported:loss", "los"])
def test_names_that_mean_nothing_are_refused(name: str) -> None:
    class Wrong(ByNorm):
        sees = (name,)

    with pytest.raises(UserError, match="reported:NAME for a number of your own"):
        seen_by(Wrong(1.0))
