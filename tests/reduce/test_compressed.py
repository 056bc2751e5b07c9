"""Memories that move, and what cannot be."""

from __future__ import annotations

import copy

import pytest
import torch

from localsgd.averaging.level import Level
from localsgd.errors import UserError
from localsgd.reduce import CompressedMean, Sign
from localsgd.rows.layout import Layout
from localsgd.wire import InProcess


def drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def after_one(**options) -> CompressedMean:
    reducer = CompressedMean(Sign(), **options)
    reducer.reduce(drawn(1, 3, 50), None, InProcess(3)).wait()
    return reducer


@pytest.mark.parametrize("way", ["gather", "two-phase"])
def test_memories_by_member(way) -> None:
    state = after_one(way=way).state()
    shapes = {key: tuple(value.shape) for key, value in state.items() if key.endswith("error")}
    expected = {"error": (1, 3, 50)} | ({"owner_error": (1, 3, 24)} if way == "two-phase" else {})
    assert shapes == expected
    assert state["place"].tolist() == [[0, 1, 2]]
    assert state["syncs"] == 1


def test_what_is_saved_stays_as_it_was() -> None:
    one, other = after_one(), CompressedMean(Sign())
    saved = copy.deepcopy(one.state())
    other.load(saved)
    other.reduce(drawn(1, 3, 50, seed=2), None, InProcess(3)).wait()
    assert torch.equal(saved["error"], one.state()["error"])


@pytest.mark.parametrize("saved", [{}, {"feedback": False}, {"feedback": True, "syncs": 3}])
def test_feedback_without_its_memory_is_refused(saved) -> None:
    with pytest.raises(UserError, match="error feedback is on, but the state is of a run with"):
        CompressedMean(Sign()).load(saved)


def test_a_memory_that_is_not_wanted_is_refused() -> None:
    with pytest.raises(UserError, match="error feedback is off, but"):
        CompressedMean(Sign(), feedback=False).load(after_one().state())


def test_a_memory_of_other_members_is_refused() -> None:
    reducer = after_one()
    with pytest.raises(
        UserError, match=r"memory of error feedback has the shape \(1, 3, 50\), but"
    ):
        reducer.reduce(drawn(1, 3, 40), None, InProcess(3))


def test_one_that_is_bound_knows_where_tensors_lie() -> None:
    """Otherwise as it was; and it keeps a layout that it was made with."""
    layout = Layout.of([("a", torch.empty(16)), ("b", torch.empty(32))])
    given = CompressedMean(Sign(), feedback=False, way="two-phase")
    told = CompressedMean(Sign(), feedback=False, way="two-phase", layout=layout)
    x = drawn(1, 2, 48)
    x[..., :16] *= 5
    bound = given.bound(layout)
    assert repr(bound) == repr(given)
    other = Layout.of([("c", torch.empty(48))])
    results = [
        reducer.reduce(x.clone(), None, InProcess(2)).wait().clone()
        for reducer in (bound, told, told.bound(other), given)
    ]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert not torch.equal(results[0], results[3])


def test_a_layout_of_other_rows_is_refused() -> None:
    layout = Layout.of([("a", torch.empty(3))])
    with pytest.raises(UserError, match="layout is of rows of 16 scalars, not of 50"):
        CompressedMean(Sign(), layout=layout).reduce(drawn(1, 3, 50), None, InProcess(3))


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(UserError, match="unknown way over the wire 'two_phase'; nearest: two-phas"):
        CompressedMean(Sign(), way="two_phase")  # type: ignore[arg-type]


def test_a_level_moves_its_anchor_by_scaled_signs() -> None:
    """Updates (2, -2) and (4, 4) of the anchor (10, 10); the paper's Algorithm 3."""
    rows = torch.full((1, 2, 2), 10.0)
    level = Level(rows, InProcess(2), reducer=CompressedMean(Sign(), feedback=False))
    rows -= torch.tensor([[[2.0, -2.0], [4.0, 4.0]]])
    level.average()
    level.share()
    assert rows.tolist() == [[[7, 9], [7, 9]]]
