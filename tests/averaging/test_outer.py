"""Outer optimizers by hand: numbers that anyone can follow, then the identities at H = 1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from localsgd import outer
from localsgd.averaging.level import Level
from localsgd.averaging.outer import OUTERS, OUTSIDE, Outer, as_outer, outer_named
from localsgd.basics.outside import Origin
from localsgd.errors import UserError
from localsgd.schedule.fixed import every
from localsgd.testing import check_outer
from localsgd.wire import InProcess
from tests.cases import Case, carried_out, close


def level_of(start: float, made: Outer | None, workers: int = 2) -> tuple[Level, Tensor]:
    """A level over workers that stand at `start`, and their rows `[w, 2]`."""
    rows = torch.full((workers, 2), start, dtype=torch.float64)
    return Level(rows.unsqueeze(0), InProcess(workers), outer=made), rows


def one_round(level: Level, rows: Tensor, to: list[float], rate: float = 1.0) -> float:
    """Workers walk to `to`, then synchronise; where they all stand then."""
    level.begin_round(rate)
    for row, place in zip(rows, to, strict=True):
        row.fill_(place)
    level.average()
    level.share()
    assert torch.equal(rows, rows[:1, :1].expand_as(rows))
    return rows[0, 0].item()


class Rated(torch.optim.SGD):
    """A class of someone else: its rate has no usual value, and it has no momentum."""

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        super().__init__(params, lr)


def test_numbers_that_a_class_lacks_or_wants_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OUTSIDE, "_added", {"rated": (Rated, Origin("mine", "1"))})
    with pytest.raises(UserError, match="rated can't be made without lr"):
        outer_named("rated", 2)
    with pytest.raises(UserError, match=r"rated has no momentum, and 0\.9 was given"):
        outer_named("rated", 2, learning_rate=0.5, momentum=0.9)
    level, rows = level_of(10.0, outer_named("rated", 2, learning_rate=0.5))
    assert one_round(level, rows, [8.0, 6.0]) == 8.5


def test_plain_averaging() -> None:
    level, rows = level_of(10.0, outer.average)
    assert one_round(level, rows, [8.0, 6.0]) == 7.0
    assert one_round(level, rows, [1.0, 2.0]) == 1.5


def test_sgd_with_rate_one_is_plain_averaging() -> None:
    level, rows = level_of(10.0, outer.sgd(1.0))
    assert one_round(level, rows, [8.0, 6.0]) == 7.0
    assert one_round(level, rows, [1.0, 2.0]) == 1.5


def test_sgd_goes_its_rate_of_the_way() -> None:
    level, rows = level_of(10.0, outer.sgd(0.5))
    assert one_round(level, rows, [8.0, 6.0]) == 8.5


def test_sgd_with_momentum() -> None:
    level, rows = level_of(10.0, outer.sgd(1.0, momentum=0.5))
    assert one_round(level, rows, [8.0, 6.0]) == 7.0  # u = 3
    assert one_round(level, rows, [6.0, 6.0]) == 4.5  # u = 1.5 + 1
    assert one_round(level, rows, [4.5, 4.5]) == 3.25  # u = 1.25 + 0


def test_sgd_with_nesterov() -> None:
    level, rows = level_of(10.0, outer.sgd(1.0, momentum=0.5, nesterov=True))
    assert one_round(level, rows, [8.0, 6.0]) == 5.5  # u = 3, step 3 + 1.5
    assert one_round(level, rows, [4.5, 4.5]) == 3.25  # u = 1.5 + 1, step 1 + 1.25


def test_block_momentum_keeps_its_memory_in_gradients_while_the_rate_changes() -> None:
    """u <- m u + mean Δ/γ, w <- w - γ u (Lin et al. 2020, appendix B.4.1)."""
    level, rows = level_of(10.0, outer.block_momentum(0.5))
    assert one_round(level, rows, [8.0, 6.0], rate=0.5) == 7.0  # u = 6
    assert one_round(level, rows, [6.0, 6.0], rate=0.25) == 5.25  # u = 3 + 4, w = 7 - 7/4
    assert one_round(level, rows, [5.25, 5.25], rate=0.5) == 3.5  # u = 3.5, w = 5.25 - 3.5/2


def test_block_momentum_follows_the_printed_recursion() -> None:
    rates, goals = [0.3, 0.1, 0.2, 0.05], [[1.0, 3.0], [0.5, -2.0], [4.0, 1.0], [0.0, 0.0]]
    level, rows = level_of(2.0, outer.block_momentum(0.7))
    w, u = 2.0, 0.0
    for rate, to in zip(rates, goals, strict=True):
        u = 0.7 * u + sum(w - place for place in to) / len(to) / rate
        w = w - rate * u
        assert one_round(level, rows, to, rate) == pytest.approx(w, rel=1e-13)


def test_block_momentum_without_momentum_is_plain_averaging() -> None:
    level, rows = level_of(10.0, outer.block_momentum(0.0))
    assert one_round(level, rows, [8.0, 6.0], rate=0.3) == pytest.approx(7.0, rel=1e-14)


def test_slowmo_goes_its_rate_of_the_way() -> None:
    """u <- β u + mean Δ/γ, w <- w - α γ u (Wang et al. 2020, Algorithm 1), β = α = 1/2."""
    level, rows = level_of(10.0, outer.slowmo(0.5, learning_rate=0.5))
    assert one_round(level, rows, [8.0, 6.0], rate=0.5) == 8.5  # u = 6
    assert one_round(level, rows, [7.5, 7.5], rate=0.25) == 7.625  # u = 3 + 4


def test_bmuf_by_hand() -> None:
    """Δ <- η Δ + ζ (mean - v), v <- v + ζ (mean - v) + η Δ; η = 1 - 1/K (Chen and Huo 2016)."""
    level, rows = level_of(10.0, outer.bmuf(2))
    assert one_round(level, rows, [8.0, 6.0]) == 5.5  # Δ = -3, v = 10 - 3 - 3/2
    assert one_round(level, rows, [4.5, 4.5]) == 3.25  # Δ = -5/2, v = 5.5 - 1 - 5/4
    level, rows = level_of(10.0, outer.bmuf(4, learning_rate=0.5), workers=4)
    assert one_round(level, rows, [8.0, 6.0, 4.0, 6.0]) == 6.5  # Δ = -2, v = 10 - 2 - 3/2
    level, rows = level_of(10.0, outer.bmuf(4, momentum=0.5), workers=4)
    assert one_round(level, rows, [8.0, 6.0, 4.0, 6.0]) == 4.0  # Δ = -4, v = 10 - 4 - 2


def test_bmuf_of_one_worker_is_plain_averaging() -> None:
    level, rows = level_of(10.0, outer.bmuf(1), workers=1)
    assert one_round(level, rows, [8.0]) == 8.0
    assert one_round(level, rows, [7.0]) == 7.0


def test_diloco_by_hand() -> None:
    level, rows = level_of(10.0, outer.diloco())
    # u = 3 and a step of 0.7 (3 + 0.9 * 3); then u = 2.7 + 1.
    assert one_round(level, rows, [8.0, 6.0]) == pytest.approx(6.01, rel=1e-14)
    assert one_round(level, rows, [5.01, 5.01]) == pytest.approx(2.979, rel=1e-14)


def test_any_optimizer_of_torch_may_be_the_outer_one() -> None:
    level, rows = level_of(10.0, Outer(lambda anchors: torch.optim.Adam(anchors, lr=0.25)))
    assert one_round(level, rows, [8.0, 6.0]) == pytest.approx(9.75, abs=1e-6)


@pytest.mark.parametrize("name", [name for name in OUTERS if name != "average"])
def test_conforms(name: str) -> None:
    check_outer(as_outer(name, workers=3))


@pytest.mark.parametrize("momentum", [-0.1, 1.0, 2.0])
def test_a_momentum_that_grows_without_bound_is_refused(momentum: float) -> None:
    for make in (lambda: outer.sgd(1.0, momentum), lambda: outer.block_momentum(momentum)):
        with pytest.raises(UserError, match="grows without bound; give one in"):
            make()


def test_nesterov_without_momentum_is_refused() -> None:
    with pytest.raises(UserError, match="Nesterov"):
        outer.sgd(1.0, nesterov=True)


def test_a_rate_of_zero_is_refused_where_it_would_divide() -> None:
    level, _ = level_of(10.0, outer.block_momentum(0.5))
    with pytest.raises(UserError, match="learning rate of 0"):
        level.begin_round(0.0)
    level, _ = level_of(10.0, outer.sgd(1.0, 0.5))
    level.begin_round(0.0)


# Whole runs


def constant(step: int) -> float:
    return 0.05


@pytest.mark.parametrize("processes", [1, 4])
def test_sgd_of_rate_one_is_averaging_in_whole_runs(processes: int) -> None:
    plain = Case("4x2", (every(2), every(3)), net="conv", momentum=0.9)
    for outers in [(outer.sgd(), None), (None, outer.sgd()), (outer.sgd(), outer.sgd())]:
        other = carried_out(replace(plain, outers=outers), processes)
        close(other.params, carried_out(plain).params)


def test_global_momentum_at_one_step_a_round_is_momentum_of_minibatch_sgd() -> None:
    """Without local momentum, block momentum at H = 1 is the momentum of mini-batch SGD."""
    inner = Case("4", (every(1),), momentum=0.9, learning_rate=constant)
    block = replace(inner, momentum=0.0, outers=(outer.block_momentum(0.9),))
    close(carried_out(block).params, carried_out(inner).params)


def test_the_two_memories_of_hybrid_momentum_may_change_places_at_one_step_a_round() -> None:
    """At H = 1 and a constant rate both filter the mean gradient, in either order."""
    one = Case("4", (every(1),), momentum=0.9, learning_rate=constant)
    one = replace(one, outers=(outer.block_momentum(0.3),))
    other = replace(one, momentum=0.3, outers=(outer.block_momentum(0.9),))
    close(carried_out(one).params, carried_out(other).params)
