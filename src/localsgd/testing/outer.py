"""What every outer optimizer promises.

Shapes: g groups of a level · m members of each · n scalars of a row.
"""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from localsgd.averaging.level import Level
from localsgd.averaging.outer import Outer, as_outer
from localsgd.testing.comparing import drawn, near, same_bits
from localsgd.wire import InProcess

RATES = (0.5, 0.25, 0.5, 0.1)
"""The inner learning rate of each round."""
GROUPS, MEMBERS, SCALARS = 2, 3, 24


def check_outer(outer: Outer | partial[Optimizer]) -> None:
    """Asserts that `outer` can move the anchors of a level.

    It works on each scalar alone, as levels put the anchors of several groups into one tensor and
    fragments of a model into several; its state moves by the level's `state` and `load`.
    """
    made = as_outer(outer, MEMBERS)
    assert made is not None, "plain averaging is no outer optimizer, and needs no check"
    for check in CHECKS:
        check(made)


def _makes_a_new_optimizer_with_one_rate(outer: Outer) -> None:
    one, other = (outer.optimizer([torch.nn.Parameter(torch.zeros(2))]) for _ in range(2))
    assert isinstance(one, Optimizer), f"{outer!r} makes {one!r}, no torch.optim.Optimizer"
    assert one is not other, (
        f"{outer!r} makes the same optimizer twice: levels would share a memory"
    )
    groups = one.param_groups
    assert len(groups) == 1, f"{outer!r} makes {len(groups)} parameter groups, not one"
    assert "lr" in groups[0], f"{outer!r} has no learning rate `lr`, which rounds scale"


def _members_go_on_from_finite_anchors(outer: Outer) -> None:
    level, members = _level(outer, drawn(GROUPS, SCALARS))
    found = _rounds(level, members)
    assert found.isfinite().all(), "the anchors are not finite after four rounds"
    same_bits(members, level.anchor.unsqueeze(1).expand_as(members), "members differ after share()")


def _moves_the_way_that_members_have_gone(outer: Outer) -> None:
    """Where all members have taken one step, the anchor's first move is in its direction."""
    level, members = _level(outer, drawn(GROUPS, SCALARS))
    start, step = level.anchor.clone(), drawn(GROUPS, SCALARS, seed=3)
    level.begin_round(RATES[0])
    members += step.unsqueeze(1)
    level.average()
    along = float(((level.anchor - start) * step).sum())
    assert along > 0, f"{outer!r} moves the anchor away from the members"


def _groups_are_apart(outer: Outer) -> None:
    start = drawn(GROUPS, SCALARS)
    together = _rounds(*_level(outer, start))
    for group in range(GROUPS):
        one = slice(group, group + 1)
        alone = _rounds(*_level(outer, start[one]), groups=one)
        near(alone[0], together[group], "a group's anchor differs with the groups beside it")


def _scalars_are_apart(outer: Outer) -> None:
    start = drawn(GROUPS, SCALARS)
    whole = _rounds(*_level(outer, start))
    for part in (slice(0, 8), slice(8, SCALARS)):
        alone = _rounds(*_level(outer, start[:, part]), scalars=part)
        near(
            alone,
            whole[:, part],
            "a part of the row goes elsewhere without the rest: fragments, groups and hosts would "
            "change the result",
        )


def _state_moves_by_state_and_load(outer: Outer) -> None:
    level, members = _level(outer, drawn(GROUPS, SCALARS))
    _rounds(level, members, until=2)
    state = copy.deepcopy(level.state())
    for name, value in state.get("outer", {}).items():
        if isinstance(value, Tensor) and value.dim():
            assert len(value) == GROUPS, f"state {name!r} has {len(value)} rows for {GROUPS} groups"
    other, others = _level(outer, level.anchor.clone())
    other.load(state)
    expected = _rounds(level, members, since=2)
    same_bits(
        _rounds(other, others, since=2), expected, "one that has loaded a state goes elsewhere"
    )


CHECKS = (
    _makes_a_new_optimizer_with_one_rate,
    _members_go_on_from_finite_anchors,
    _moves_the_way_that_members_have_gone,
    _groups_are_apart,
    _scalars_are_apart,
    _state_moves_by_state_and_load,
)


def _level(outer: Outer, start: Tensor) -> tuple[Level, Tensor]:
    """A level whose members stand at `start [g, n]`, and the members `[g, m, n]`."""
    members = start.unsqueeze(1).repeat(1, MEMBERS, 1)
    return Level(members, InProcess(MEMBERS), outer=outer), members


def _rounds(
    level: Level,
    members: Tensor,
    *,
    since: int = 0,
    until: int = len(RATES),
    groups: slice = slice(None),
    scalars: slice = slice(None),
) -> Tensor:
    """Members walk and synchronise; the anchors `[g, n]` then."""
    for index in range(since, until):
        level.begin_round(RATES[index])
        walked = drawn(GROUPS, MEMBERS, SCALARS, seed=index + 5)[groups][..., scalars]
        members += RATES[index] * walked
        level.average()
        level.share()
    return level.anchor.clone()
