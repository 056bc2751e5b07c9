"""Results that come late, on a clock that the test moves, and on the wall's."""

from __future__ import annotations

import time

import pytest
import torch

from localsgd import UserError
from localsgd.averaging.build import build_levels
from localsgd.averaging.placement import placement_of, with_latency
from localsgd.averaging.topology import Topology
from localsgd.wire import InProcess, Pending
from localsgd.wire.latency import SimulatedClock, WallClock, WithLatency


class Hands:
    """A clock that stands still unless it is moved or waited for."""

    simulated = True

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wait_until(self, moment: float) -> None:
        self.time = max(self.time, moment)


class Slow(InProcess):
    """A call that blocks for 3 seconds of the hands when it is waited for."""

    hands: Hands

    def sum(self, x: torch.Tensor) -> Pending[torch.Tensor]:
        return super().sum(x).then(self._late)

    def _late(self, x: torch.Tensor) -> torch.Tensor:
        self.hands.time += 3.0
        return x


def test_what_is_computed_meanwhile_hides_the_delay() -> None:
    hands = Hands()
    pending = WithLatency(InProcess(2), 10.0, hands).sum(torch.ones(1, 2, 3))
    hands.time += 4.0
    assert torch.equal(pending.wait(), torch.full((1, 3), 2.0))
    assert hands.time == 10.0
    hands.time += 5.0
    pending.wait()
    assert hands.time == 15.0  # Waited for once.


def test_a_delay_comes_on_top_of_what_the_call_itself_takes() -> None:
    hands = Hands()
    slow = Slow(2)
    object.__setattr__(slow, "hands", hands)
    WithLatency(slow, 10.0, hands).sum(torch.ones(1, 2, 3)).wait()
    assert hands.time == 13.0


def test_every_call_is_late_and_gives_what_it_would() -> None:
    hands = Hands()
    late, bare = WithLatency(InProcess(3), 1.0, hands), InProcess(3)
    assert late.members == 3
    flat, square = torch.rand(2, 3, 4), torch.rand(2, 3, 3, 4)
    for call, x in (("sum", flat), ("gather", flat), ("exchange", square)):
        expected = getattr(bare, call)(x.clone()).wait()
        assert torch.equal(getattr(late, call)(x.clone()).wait(), expected)
    assert hands.time == 3.0


def test_the_wall_clock_waits_and_the_simulated_one_says_that_it_does_not() -> None:
    wall, simulated = WallClock(), SimulatedClock()
    for clock, seconds in ((wall, 0.05), (simulated, 50.0)):
        start, really = clock.now(), time.perf_counter()
        WithLatency(InProcess(1), seconds, clock).sum(torch.ones(1, 1, 1)).wait()
        assert seconds <= clock.now() - start < seconds + 1
        assert (time.perf_counter() - really < seconds) is clock.simulated
    assert 49.9 < simulated.skipped_seconds <= 50.0
    assert not wall.simulated


@pytest.mark.parametrize("topology", ["2x2", "1+3"])
def test_levels_have_delays_of_their_own(topology: str) -> None:
    hands = Hands()
    placement = with_latency(placement_of(Topology.parse(topology)), [0.0, 7.0], hands)
    inner, outer = build_levels(placement, torch.rand(4, 16))
    inner.average()
    assert hands.time == 0.0
    outer.average()
    assert hands.time == 7.0


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="-1 seconds"):
        WithLatency(InProcess(1), -1)
    with pytest.raises(UserError, match="1 delay for the 2 levels"):
        with_latency(placement_of(Topology.parse("2x2")), [1.0])
