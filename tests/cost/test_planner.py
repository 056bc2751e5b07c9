"""The plan against sums by hand, and its H against the obvious search."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest

from localsgd import UserError
from localsgd.cost.allreduce import Link
from localsgd.cost.planner import BITS, Plan, Stage, largest_of

SLOW = Stage(4, Link.of_rate(100e6))
FAST = Stage(2, Link.of_rate(10e9, alpha=1e-3))


def plan(*stages: Stage, **changed: Any) -> Plan:
    return Plan(**{"step_seconds": 0.1, "scalars": 1_000_000, "stages": stages, **changed})


def test_a_ring_of_a_model_takes_its_bytes_and_is_paid_once_a_round() -> None:
    dense = 2 * 3 / 4 * 4e6 * 8 / 100e6
    assert plan(SLOW).waited_seconds([1]) == pytest.approx(dense)
    assert plan(SLOW).seconds([16]) == pytest.approx(0.1 + dense / 16)
    for way, bits in BITS.items():
        assert plan(SLOW).waited_seconds([4], way) == pytest.approx(dense * bits / 32 / 4)
    assert plan(SLOW, coding_seconds=0.2).waited_seconds([4], "sign") == pytest.approx(
        (dense / 32 + 0.2) / 4
    )


def test_compressed_models_are_gathered_where_the_reducer_gathers_them() -> None:
    """c bytes from each of the others, one message each; else a ring's two phases."""
    link = Link.of_rate(100e6, alpha=1e-3)
    second = 8 / 100e6
    for members, scalars, gathered in ((2, 10**6, True), (4, 10**5, True), (4, 10**6, False)):
        size, others = scalars / 8, members - 1
        by_ring = 2 * others * (1e-3 + size / members * second)
        expected = others * (1e-3 + size * second) if gathered else by_ring
        for algorithm in ("ring", "tree"):
            stage = Stage(members, link, algorithm)
            assert stage.sync_seconds(scalars, "sign") == pytest.approx(expected)


def test_levels_are_paid_at_their_own_periods_and_only_the_outermost_is_compressed() -> None:
    inner, outer = FAST.sync_seconds(10**6, "dense"), SLOW.sync_seconds(10**6, "sign")
    assert inner == pytest.approx(2 * 1e-3 + 4e6 * 8 / 10e9)
    waited = plan(FAST, SLOW).waited_seconds([2, 8], "sign")
    assert waited == pytest.approx(inner / 2 + outer / 16)
    assert plan(FAST, SLOW).workers == 8


@pytest.mark.parametrize("share", [0.9, 0.3, 0.05, 0.01])
@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_the_smallest_h_is_the_first_that_waits_little_enough(share: float, spread: float) -> None:
    one = plan(SLOW, spread=spread)
    first = next(steps for steps in range(1, 10_000) if one.waiting_fraction([steps]) < share)
    assert one.smallest(share) == first


def test_where_the_levels_within_wait_too_long_no_h_helps() -> None:
    assert plan(SLOW, SLOW).smallest(0.05, inner=[1]) is None
    assert plan(SLOW, SLOW).smallest(0.9, inner=[64]) == 1


def test_stragglers_cost_what_the_slowest_of_many_draws_does() -> None:
    draw = random.Random(0)
    for members, steps in ((4, 1), (16, 9)):
        slowest = [
            max(sum(draw.gauss(0.1, 0.02) for _ in range(steps)) for _ in range(members))
            for _ in range(4000)
        ]
        stage = Stage(members, Link(0.0, 0.0))
        modelled = plan(stage, spread=0.2).seconds([steps])
        assert modelled == pytest.approx(statistics.mean(slowest) / steps, rel=0.01)


def test_the_expected_largest_is_near_the_exact_one() -> None:
    exact = {1: 0.0, 2: 0.5642, 3: 0.8463, 10: 1.5388, 100: 2.5076, 1000: 3.2414}
    assert all(abs(largest_of(count) - value) < 0.03 for count, value in exact.items())
    assert largest_of(10**40) == pytest.approx(13.25, abs=0.1)  # sqrt(2 ln n) less a little


def test_a_hundred_thousand_workers_are_no_more_work_than_four() -> None:
    stages = (Stage(8, FAST.link), Stage(100, FAST.link), Stage(125, SLOW.link, "tree"))
    large = plan(*stages, spread=0.05)
    assert large.workers == 100_000
    assert large.smallest(0.5, inner=[4, 4]) is not None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: plan(SLOW, step_seconds=0), "a step can't take 0 seconds"),
        (lambda: plan(SLOW, scalars=0), "0 scalars"),
        (lambda: plan(SLOW, spread=-1), "spread = -1"),
        (lambda: plan(), "needs a level"),
        (lambda: plan(SLOW).seconds([1, 2]), "for 1 level;"),
        (lambda: plan(SLOW).seconds([1], "zip"), "unknown way"),
        (lambda: plan(SLOW).smallest(1.5), "budget = 1.5"),
        (lambda: Stage(0, SLOW.link), "0 members"),
        (lambda: Stage(2, SLOW.link, "star"), "unknown all-reduce"),
    ],
)
def test_mistakes_are_named(make, said: str) -> None:
    with pytest.raises(UserError, match=said):
        make()
