"""What every reducer promises.

Shapes: g groups · m members hosted here · M members · n scalars of a row.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.reduce.reducer import Reducer
from localsgd.testing.apart import in_threads
from localsgd.testing.comparing import LAYOUT, near, same_bits, settings_of, updates
from localsgd.wire import Collective, InProcess, Pending

HOSTINGS = ((4, 1), (2, 2))
"""Threads, and the members of each."""
MOST_SYNCS = 2000
"""After which the mean over syncs of one that draws is taken as it is."""


def check_reducer(reducer: Reducer) -> None:
    """Asserts that `reducer` can stand in a level.

    Every check takes a new one by `reducer.bound(layout)`. Members that are hosted apart get what
    they would get together; what is claimed by `linear` and `only_reads` holds; memory moves by
    `state` and `load`; NaN is refused or stays to be seen.
    """
    assert isinstance(reducer, Reducer), f"{reducer!r} lacks a part of Reducer; inherit from it"
    for check in CHECKS:
        check(reducer)


def _gives_one_row_a_group(reducer: Reducer) -> None:
    for (g, m), dtype in ((shape, dtype) for shape in SHAPES for dtype in DTYPES):
        found = _reduced(reducer.bound(LAYOUT), updates(g, m, dtype=dtype))
        assert found.shape == (g, LAYOUT.length), (
            f"the mean of {g} groups of {m} has the shape {tuple(found.shape)}"
        )
        assert found.dtype == dtype, f"the mean of {dtype} is {found.dtype}"
        assert found.isfinite().all(), "the mean of finite updates has NaN or infinity"


def _groups_are_apart(reducer: Reducer) -> None:
    x = updates(2, 4)
    together = _reduced(reducer.bound(LAYOUT), x)
    for group in range(2):
        alone = _reduced(reducer.bound(LAYOUT), x[group : group + 1])
        near(alone[0], together[group], "a group's mean differs with the groups beside it")


def _the_result_outlives_the_update(reducer: Reducer) -> None:
    """The update is scratch, but what is returned may lie in its first member."""
    x = updates(2, 4)
    mean = reducer.bound(LAYOUT).reduce(x, None, InProcess(4)).wait()
    x[:, 1:] = math.nan
    same_bits(
        mean, _reduced(reducer.bound(LAYOUT), updates(2, 4)), "the result lies in another's update"
    )


def _weights_are_those_of_the_mean(reducer: Reducer) -> None:
    """Unequal ones give the weighted mean, as nearly as equal ones give the plain one; an update
    whose weight is 0 does not count.
    """
    x = updates(2, 4)
    equal = torch.full((2, 4), 0.25, dtype=x.dtype)
    plain = _reduced(reducer.bound(LAYOUT), x)
    weighted = _reduced(reducer.bound(LAYOUT), x, equal)
    near(weighted, plain, "weights of 1/M differ from None")
    unequal = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.25, 0.5, 0.125, 0.125]], dtype=x.dtype)
    weighted = _reduced(reducer.bound(LAYOUT), x, unequal)
    scaled = _reduced(reducer.bound(LAYOUT), 4 * unequal.unsqueeze(-1) * x)
    if not torch.allclose(weighted, scaled, rtol=1e-9, atol=1e-9):
        mean = (unequal.unsqueeze(-1) * x).sum(1)
        off, own = (weighted - mean).norm(), (plain - x.mean(1)).norm()
        assert off <= min(3 * own, mean.norm() / 2), (
            f"unequal weights are not those of a weighted mean: {off:.3g} away from it, and "
            f"{own:.3g} with equal ones"
        )
    one = torch.tensor([[1.0, 0.0, 0.0, 0.0]] * 2, dtype=x.dtype)
    other = x.clone()
    other[:, 1:] = updates(2, 3, seed=8)
    near(
        _reduced(reducer.bound(LAYOUT), other, one),
        _reduced(reducer.bound(LAYOUT), x, one),
        "an update whose weight is 0 counts",
    )


def _equal_updates_have_the_size_of_one(reducer: Reducer) -> None:
    """Not of M of them, as a sum would have: along the update, in the mean over syncs."""
    alone = _along(reducer, 1)
    for members in (2, 4):
        together = _along(reducer, members)
        assert abs(together - alone) < 0.5 * abs(alone), (
            f"the mean of {members} equal updates is {together / alone:.3g} times as large as that "
            "of one"
        )


def _along(reducer: Reducer, members: int) -> float:
    """How much of an update the mean of so many like it has, over enough syncs to be sure."""
    one = updates(1, 1)
    own = reducer.bound(LAYOUT)
    found: list[float] = []
    while True:
        for _ in range(16):
            mean = _reduced(own, one.expand(1, members, -1))
            found.append(float(mean.flatten().dot(one.flatten()) / one.square().sum()))
        shares = torch.tensor(found)
        sure = float(shares.std()) / math.sqrt(len(found)) < 0.08 * abs(float(shares.mean()))
        if sure or len(found) >= MOST_SYNCS:
            return float(shares.mean())


def _linear_is_true_to_its_word(reducer: Reducer) -> None:
    if not reducer.linear:
        return
    x, y = updates(2, 4), updates(2, 4, seed=9)
    together = _reduced(reducer.bound(LAYOUT), 2 * x - 3 * y)
    apart = 2 * _reduced(reducer.bound(LAYOUT), x) - 3 * _reduced(reducer.bound(LAYOUT), y)
    near(together, apart, "it says linear, but is not")
    equal = updates(2, 1).expand(2, 4, -1)
    near(
        _reduced(reducer.bound(LAYOUT), equal),
        equal[:, 0],
        "it says linear, so models are given to it, but the mean of equal models is another",
    )


def _members_apart_get_what_they_get_together(reducer: Reducer) -> None:
    """Over three syncs, as memory has its part in the later ones."""
    together = reducer.bound(LAYOUT)
    expected = [_reduced(together, updates(1, 4, seed=sync)) for sync in range(3)]
    for threads, hosted in HOSTINGS:

        def work(thread: int, collective: Collective, hosted: int = hosted) -> list[Tensor]:
            own = reducer.bound(LAYOUT)
            mine = slice(thread * hosted, (thread + 1) * hosted)
            return [
                own.reduce(updates(1, 4, seed=sync)[:, mine].clone(), None, collective)
                .wait()
                .clone()
                for sync in range(3)
            ]

        for found in in_threads(threads, hosted, work):
            for sync, (one, other) in enumerate(zip(found, expected, strict=True)):
                what = f"{threads} x {hosted} members apart differ from 4 together at sync {sync}"
                near(one, other, what, 1e-9)


def _memory_moves_by_state_and_load(reducer: Reducer) -> None:
    one, other = reducer.bound(LAYOUT), reducer.bound(LAYOUT)
    _reduced(one, updates(2, 4))
    other.load(copy.deepcopy(one.state()))
    for seed in (3, 4):
        x = updates(2, 4, seed=seed)
        same_bits(
            _reduced(other, x), _reduced(one, x), "one that has loaded a state goes elsewhere"
        )


def _repr_tells_settings_alone(reducer: Reducer) -> None:
    used = reducer.bound(LAYOUT)
    _reduced(used, updates(1, 2))
    assert settings_of(used) == settings_of(reducer), (
        f"repr() changes with layout or memory, from {reducer!r} to {used!r}: saved states would "
        "be refused"
    )


def _takes_a_part_of_a_row_or_refuses(reducer: Reducer) -> None:
    cut = LAYOUT.length // 16 * 8
    for start, stop in ((0, cut), (cut, LAYOUT.length)):
        try:
            part = reducer.bound(LAYOUT).part(start, stop)
        except UserError:
            return
        found = _reduced(part, updates(2, 4)[..., start:stop])
        assert found.shape == (2, stop - start), f"part({start}, {stop}) gives {found.shape}"


def _nan_is_refused_or_stays(reducer: Reducer) -> None:
    x = updates(1, 4)
    x[0, 2, 3] = math.nan
    try:
        found = _reduced(reducer.bound(LAYOUT), x)
    except UserError:
        return
    assert not found.isfinite().all(), "NaN in an update becomes a finite mean: nobody would notice"


def _only_reads_is_true_to_its_word(reducer: Reducer) -> None:
    if not reducer.only_reads:
        return
    for fails_at in range(3):
        x = updates(1, 4)
        try:
            reducer.bound(LAYOUT).reduce(x, None, _Failing(fails_at)).wait()
        except ConnectionError:
            same_bits(
                x, updates(1, 4), "it says only_reads, but a failed reduction changes updates"
            )


SHAPES = ((1, 1), (1, 2), (2, 4), (1, 3))
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
CHECKS = (
    _gives_one_row_a_group,
    _groups_are_apart,
    _the_result_outlives_the_update,
    _weights_are_those_of_the_mean,
    _equal_updates_have_the_size_of_one,
    _linear_is_true_to_its_word,
    _members_apart_get_what_they_get_together,
    _memory_moves_by_state_and_load,
    _repr_tells_settings_alone,
    _takes_a_part_of_a_row_or_refuses,
    _nan_is_refused_or_stays,
    _only_reads_is_true_to_its_word,
)


def _reduced(reducer: Reducer, x: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean that a reducer gives in one process."""
    return reducer.reduce(x.clone(), weights, InProcess(x.shape[1])).wait().clone()


@dataclass
class _Failing:
    """Four members in this process; what the call of this number is waited for raises."""

    fails_at: int
    members: int = 4
    calls: int = field(default=0, init=False)

    def sum(self, x: Tensor) -> Pending[Tensor]:
        return self._one(InProcess(4).sum(x))

    def gather(self, x: Tensor) -> Pending[Tensor]:
        return self._one(InProcess(4).gather(x))

    def exchange(self, x: Tensor) -> Pending[Tensor]:
        return self._one(InProcess(4).exchange(x))

    def _one(self, pending: Pending[Tensor]) -> Pending[Tensor]:
        self.calls += 1
        if self.calls - 1 != self.fails_at:
            return pending

        def fail() -> Tensor:
            raise ConnectionError("the wire has failed")

        return Pending(fail)
