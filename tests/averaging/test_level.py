"""Levels on rows small enough to work out by hand, and what a plain sync does not do.

Shapes: g groups · m members of each · n scalars.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from localsgd import outer
from localsgd.averaging.build import build_levels
from localsgd.averaging.level import Level, Spare, average_and_share, leave_out
from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.reduce import ExactMean, OrderedMean, Reducer
from localsgd.wire import InProcess, Ledger, Pending
from tests.distributed.crossing import Calls
from tests.distributed.harness import run


def rows_of(*values: float) -> Tensor:
    """Rows `[w, 8]`, each of one value."""
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1).repeat(1, 8)


def levels_of(topology: str, rows: Tensor, **options: Any) -> list[Any]:
    return build_levels(placement_of(Topology.parse(topology)), rows, **options)


def heights(rows: Tensor) -> list[float]:
    assert torch.equal(rows, rows[:, :1].expand_as(rows))
    return rows[:, 0].tolist()


def test_groups_average_each_on_their_own_mean() -> None:
    rows = rows_of(1, 3, 10, 20)
    level = Level(rows.unflatten(0, (2, 2)), InProcess(2))
    level.average()
    assert heights(level.anchor) == [2, 15]
    level.share()
    assert heights(rows) == [2, 2, 15, 15]


def test_levels_nest() -> None:
    rows = rows_of(1, 3, 10, 20, 5, 5, 0, 4)
    levels = levels_of("2x2x2", rows)
    average_and_share(levels[:1])
    assert heights(rows) == [2, 2, 15, 15, 5, 5, 2, 2]
    average_and_share(levels[:2])
    assert heights(rows) == [8.5, 8.5, 8.5, 8.5, 3.5, 3.5, 3.5, 3.5]
    average_and_share(levels)
    assert heights(rows) == [6.0] * 8


def test_an_outer_sync_includes_the_inner_ones() -> None:
    rows = rows_of(1, 3, 10, 20)
    average_and_share(levels_of("2x2", rows))
    assert heights(rows) == [8.5] * 4


def test_rows_that_were_read_say_nothing_of_the_means_further_out() -> None:
    """The sum of two finite numbers is not finite, and its block is left out of the outer mean."""
    rows = rows_of(1, 1, 10, 20)
    rows[:2, 0] = 1.7e308
    rows[:, 7] = 0
    spare = Spare([7], says=lambda: None, seen=lambda: True)
    average_and_share(levels_of("2x2", rows, spare=spare))
    assert rows.tolist() == [[15.0] * 7 + [0.0]] * 4


def test_levels_that_have_averaged_gradients_are_skipped_but_handed_down() -> None:
    rows = rows_of(2, 2, 15, 15)
    levels = levels_of("2x2", rows)
    average_and_share(levels, first=1)
    assert heights(rows) == [8.5] * 4
    assert [level.syncs for level in levels] == [0, 1]


def test_blocks_of_unequal_size_weigh_as_many_workers_as_they_have() -> None:
    rows = rows_of(1, 3, 10, 20, 30, 40, 50, 60)
    levels = levels_of("2+3+3", rows)
    average_and_share(levels[:1])
    assert heights(rows) == [2, 2, 20, 20, 20, 50, 50, 50]
    rows.copy_(rows_of(1, 3, 10, 20, 30, 40, 50, 60))
    average_and_share(levels)
    assert heights(rows) == pytest.approx([214 / 8] * 8, rel=1e-14)
    rows.copy_(rows_of(1, 1, 2, 2, 2, 3, 3, 3))  # equal in blocks, by their gradients
    average_and_share(levels, first=1)
    assert heights(rows) == pytest.approx([17 / 8] * 8, rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [ExactMean, OrderedMean])
@pytest.mark.parametrize("topology", ["1+2", "2+3", "3+4", "5+2"])
def test_equal_blocks_in_half_precision_stay_where_they_are(
    topology: str, make: Callable[[], Reducer], dtype: torch.dtype
) -> None:
    """Bits are kept, though the outermost level's rounded weights would not add up to 1."""
    workers = Topology.parse(topology).workers
    start = torch.randn(4096, generator=torch.Generator().manual_seed(1)).to(dtype)
    rows = start.repeat(workers, 1)
    levels = levels_of(topology, rows, reducers=[make(), make()])
    for _ in range(10):
        average_and_share(levels, first=1)
    assert torch.equal(rows, start.expand_as(rows))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("topology", ["2+3", "3+4"])
def test_equal_workers_in_half_precision_stay_within_a_rounding(
    topology: str, dtype: torch.dtype
) -> None:
    workers = Topology.parse(topology).workers
    start = torch.randn(4096, generator=torch.Generator().manual_seed(1)).to(dtype)
    rows = start.repeat(workers, 1)
    levels = levels_of(topology, rows)
    for _ in range(10):
        average_and_share(levels)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(rows[0].double(), start.double(), rtol=eps, atol=0)


def test_weights() -> None:
    rows = rows_of(1, 3, 10, 20)
    weights = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
    level = Level(rows.unflatten(0, (2, 2)), InProcess(2), weights=weights)
    level.average()
    assert heights(level.anchor) == [2.5, 15]


def test_an_outer_optimizer_moves_the_anchor_and_not_the_members() -> None:
    rows = rows_of(0, 0)
    level = Level(rows.unsqueeze(0), InProcess(2), outer=outer.sgd(0.5))
    rows.copy_(rows_of(-2, -6))
    level.average()
    assert heights(level.anchor) == [-2]
    level.share()
    assert heights(rows) == [-2, -2]


def test_an_outer_level_starts_the_inner_ones_anew_from_its_anchor() -> None:
    rows = rows_of(0, 0, 0, 0)
    levels = levels_of("2x2", rows, outers=[outer.sgd(0.5), outer.sgd(0.5)])
    rows.copy_(rows_of(-4, -4, -8, -8))
    average_and_share(levels)  # anchors inside -2 and -4, their mean -3, half of the way there
    assert heights(rows) == [-1.5] * 4
    assert heights(levels[0].anchor) == [-1.5, -1.5]
    rows.copy_(rows_of(-3.5, -3.5, -1.5, -1.5))
    average_and_share(levels[:1])
    assert heights(rows) == [-2.5, -2.5, -1.5, -1.5]


def test_averaging_comes_in_two_parts() -> None:
    rows = rows_of(1, 3)
    level = Level(rows.unsqueeze(0), InProcess(2))
    with pytest.raises(RuntimeError, match="without begin_average"):
        level.finish_average()
    level.begin_average()
    level.finish_average()
    assert heights(level.anchor) == [2]
    with pytest.raises(RuntimeError, match="without begin_average"):
        level.finish_average()


class Halved(Reducer):
    """A reducer that loses half of everything: not linear in the sense of a level."""

    def __init__(self) -> None:
        self.count = 0

    def reduce(self, update: Tensor, weights: Tensor | None, collective: Any) -> Pending[Tensor]:
        self.count += 1
        return Pending.done(update.mean(1) / 2)

    def state(self) -> dict[str, Any]:
        return {"count": self.count}

    def load(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def test_other_reducers_see_updates_and_not_models() -> None:
    rows = rows_of(10, 10)
    level = Level(rows.unsqueeze(0), InProcess(2), reducer=Halved())
    rows.copy_(rows_of(8, 4))
    level.average()
    level.share()
    assert heights(rows) == [8, 8]  # 10 - (2 + 6) / 2 / 2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"outer": outer.sgd(0.5, 0.5)},
        {"outer": outer.block_momentum(0.5)},
        {"reducer": Halved},
        {"reducer": OrderedMean},
        {"outer": outer.sgd(0.5, 0.5), "reducer": Halved},
    ],
    ids=str,
)
def test_state_carries_a_level_over(options: dict[str, Any]) -> None:
    made = {name: make() if isinstance(make, type) else make for name, make in options.items()}
    again = {name: make() if isinstance(make, type) else make for name, make in options.items()}
    rows, others = rows_of(1, 2, 3, 4), rows_of(0, 0, 0, 0)
    level = Level(rows.unflatten(0, (2, 2)), InProcess(2), **made)
    other = Level(others.unflatten(0, (2, 2)), InProcess(2), **again)
    level.begin_round(0.5)
    rows -= rows_of(1, 2, 3, 5)
    average_and_share([level])
    level.begin_round(0.25)
    others.copy_(rows)
    other.load(copy.deepcopy(level.state()))
    for moved, which in ((rows, level), (others, other)):
        moved -= rows_of(1, 0, 2, 7)
        average_and_share([which])
    assert torch.equal(rows, others)
    assert level.remembers is bool(set(options) - {"reducer"} or options.get("reducer") is Halved)


# A plain sync is one collective and one division, on memory that already lies in place


def operations(topology: str, levels_that_average: int | None = None) -> tuple[list[str], bool]:
    """What a plain sync does, and whether everything is where it was."""
    placement = placement_of(Topology.parse(topology))
    rows = torch.ones(placement.hosted, 64)
    ledger = Ledger.of(placement.topology.levels)
    levels = build_levels(placement, rows, ledger=ledger)
    before = [rows.data_ptr(), *(level.anchor.data_ptr() for level in levels)]
    with Calls() as calls:
        average_and_share(levels[:levels_that_average])
    after = [rows.data_ptr(), *(level.anchor.data_ptr() for level in levels)]
    return calls.names, before == after


def test_one_worker_in_each_process_reduces_and_divides_and_nothing_else() -> None:
    for names, in_place in run(4, operations, "4"):
        assert names == ["allreduce_", "div_"]
        assert in_place


def test_two_levels_of_one_worker_in_each_process_copy_nothing() -> None:
    for names, in_place in run(4, operations, "2x2", 1):
        assert names == ["allreduce_", "div_"]
        assert in_place
    for names, in_place in run(4, operations, "2x2"):
        # Outside, the two processes of a block reduce a slice each and gather the slices.
        assert names == ["allreduce_", "div_", "allreduce_", "_allgather_base_", "div_"]
        assert in_place


def test_in_one_process_members_are_added_divided_and_copied_where_they_lie() -> None:
    names, in_place = operations("4")
    assert names == ["add_", "add_", "add_", "div_", "copy_"]
    assert in_place


def test_one_worker_alone_does_nothing_at_all() -> None:
    names, in_place = operations("1")
    assert names == []
    assert in_place


@pytest.mark.parametrize(("how", "divisions"), [(outer.sgd(0.5), 0), (outer.slowmo(0.5), 1)])
def test_an_outer_optimizer_is_fed_in_no_row_of_its_own(how: Any, divisions: int) -> None:
    """The mean update lies in the first member; it is divided by γ there, and not by 1."""
    rows = torch.ones(1, 2, 64, dtype=torch.float64)
    level = Level(rows, InProcess(2), outer=how)
    fed: list[Tensor | None] = []
    [parameter] = level._optimizer.param_groups[0]["params"]  # type: ignore[union-attr]
    step = level._optimizer.step  # type: ignore[union-attr]
    level._optimizer.step = lambda: fed.append(parameter.grad) or step()  # type: ignore
    level.begin_round(0.25)
    rows -= 0.5
    with Calls() as calls:
        level.average()
    assert calls.names.count("div") == divisions
    [gradient] = fed
    assert gradient is not None
    assert gradient.data_ptr() == rows.data_ptr()
    # Both take 0.5, by the rate 0.5 or the momentum's first step.
    assert heights(level.anchor) == [0.75 if divisions == 0 else 0.5]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("topology", [*map(str, range(2, 17)), "1+2", "2+3+3", "1+5+9"])
def test_equal_workers_in_half_precision_stay_where_others_are_left_out(
    topology: str, dtype: torch.dtype
) -> None:
    workers = Topology.parse(topology).workers
    first = Topology.parse(topology).unequal[:1] or (1,)
    rows = torch.ones(workers, 8).to(dtype)
    rows[:, 7] = 0.0
    rows[: first[0]] = torch.nan  # the whole first block, where there are some
    spare = Spare([7], says=lambda: None)
    average_and_share(levels_of(topology, rows, spare=spare))
    assert torch.equal(rows[:, :7], torch.ones_like(rows[:, :7]))


def test_a_device_that_is_not_asked_says_nothing() -> None:
    said: list[int] = []
    leave_out(torch.zeros(1, 2, 8, device="meta"), Spare([7], lambda: said.append(1)))
    assert said == []
    leave_out(torch.full((1, 2, 8), torch.nan), Spare([7], lambda: said.append(1)))
    assert said == [1]
