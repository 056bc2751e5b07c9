"""The core loop against the obvious ways, in one process and in four.

The equalities are the exact checks that the paper's algorithms must pass, in float64, to 1e-12.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from localsgd import outer
from localsgd.averaging.stacks import GradientLevels, Stacks
from localsgd.loop import Loop
from localsgd.schedule.fixed import every, piecewise, post_local, warmup
from localsgd.schedule.progress import Progress
from tests.cases import (
    Assembled,
    Case,
    carried_out,
    close,
    distance,
    minibatch,
    obvious,
    same_bits,
)
from tests.odometer import odometer

in_one_and_four = pytest.mark.parametrize("processes", [1, 4])
on_either = pytest.mark.parametrize("average", ["models", "gradients"])

INNERS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "decay": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
}
with_every_inner = pytest.mark.parametrize("inner", INNERS.values(), ids=INNERS.keys())

# Over four processes: of one worker, of two, of whole blocks, and blocks of several processes.
TREES = [
    ("4", (every(3),)),
    ("8", (post_local(4, after=5),)),
    ("4x2", (every(2), every(3))),
    ("2x4", (every(1), every(4))),
    ("4x2", (every(3), every(1))),
    ("2x2x2", (every(1), every(2), every(2))),
    ("2x2x2", (every(1), every(1), every(3))),
    ("1x2x4", (every(2), every(2), every(1))),
    ("4x1x2", (every(1), every(3), every(2))),
    ("2x4", (piecewise({0: 1, 4: 2}), post_local(2, after=6))),
    ("8", (warmup(4, 8),)),
    ("1+3", (every(2), every(2))),
    ("2+1+1", (every(1), every(4))),
    ("1+1+2", (every(1), post_local(3, after=4))),
]


# H = 1 is mini-batch SGD


@in_one_and_four
@on_either
@with_every_inner
def test_every_step_is_minibatch_sgd(processes: int, average: str, inner: dict) -> None:
    case = Case("8", (every(1),), average=average, **inner)
    got, expected = carried_out(case, processes), minibatch(case)
    close(got.params, expected.params)
    assert distance(got, minibatch(replace(case, steps=0))) > 0.1, "nothing was learned"


@in_one_and_four
@on_either
@pytest.mark.parametrize("topology", ["4", "2x4", "2+1+1"])
def test_with_batch_norm_it_is_ghost_batch_norm(
    processes: int, average: str, topology: str
) -> None:
    ones = (every(1),) if topology == "4" else (every(1), every(1))
    case = Case(topology, ones, net="conv", average=average, **INNERS["decay"])
    got, expected = carried_out(case, processes), minibatch(case)
    close(got.params, expected.params)
    close(got.buffers, expected.buffers)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 16])
@on_either
def test_any_number_of_workers(workers: int, average: str) -> None:
    case = Case(str(workers), (every(1),), average=average, **INNERS["nesterov"])
    close(carried_out(case).params, minibatch(case).params)


@in_one_and_four
def test_the_mean_of_the_momenta_is_the_shared_momentum(processes: int) -> None:
    models = Case("4", (every(1),), **INNERS["decay"])
    got = carried_out(models, processes)
    shared = minibatch(models).momenta
    close({n: m.mean(0) for n, m in got.momenta.items()}, {n: m[0] for n, m in shared.items()})
    assert max((m[0] - m[1]).abs().max() for m in got.momenta.values()) > 1e-3
    close(carried_out(replace(models, average="gradients"), processes).momenta, shared)


def test_the_printed_update_with_gamma_twice_is_another_algorithm() -> None:
    """w <- w - γ/K Σ Δ^k, with γ in Δ already (the line of Lin et al. 2020, Algorithm 1)."""
    rate = 0.1
    case = Case("4", (every(1),), learning_rate=lambda step: rate, momentum=0.9)
    literal = replace(case, outers=(outer.sgd(rate),))
    expected = minibatch(case)
    close(carried_out(replace(case, outers=(outer.sgd(1.0),))).params, expected.params)
    with pytest.raises(AssertionError):
        close(carried_out(literal).params, expected.params)
    start = minibatch(replace(case, steps=0))
    assert distance(carried_out(literal), start) < 0.2 * distance(expected, start)


# K = 1 is plain SGD, whatever H


@pytest.mark.parametrize(
    "schedule", [every(1), every(5), every(100), post_local(4, after=6), warmup(4, 6)], ids=repr
)
@with_every_inner
@on_either
def test_one_worker_is_plain_sgd(schedule, inner: dict, average: str) -> None:
    case = Case("1", (schedule,), net="conv", average=average, **inner)
    got, expected = carried_out(case), minibatch(case)
    close(got.params, expected.params)
    close(got.buffers, expected.buffers)
    close(got.momenta, expected.momenta)


# Post-local SGD between its two ends


@in_one_and_four
@on_either
def test_post_local_that_never_switches_is_minibatch_sgd(processes: int, average: str) -> None:
    case = Case("4", (post_local(4, after=99),), average=average, **INNERS["decay"])
    close(carried_out(case, processes).params, minibatch(case).params)


@in_one_and_four
@on_either
def test_post_local_from_the_start_is_local_sgd(processes: int, average: str) -> None:
    case = Case("4", (post_local(4, after=0),), average=average, **INNERS["decay"])
    local = replace(case, schedules=(every(4),))
    same_bits(carried_out(case, processes), carried_out(local, processes))
    assert distance(carried_out(case), minibatch(case)) > 1e-3


@in_one_and_four
def test_after_averaging_on_gradients_workers_go_on_from_the_shared_momentum(
    processes: int,
) -> None:
    switch = 5
    case = Case("4", (post_local(4, after=switch),), average="gradients", **INNERS["decay"])
    shared = minibatch(replace(case, steps=switch))
    assembled = Assembled.of(case)
    seen = []

    def look() -> None:
        if assembled.workers.step == switch:
            seen.append(copy.deepcopy(assembled.outcome()))

    assembled.go(after_step=look)
    close(seen[0].params, shared.params)
    close(seen[0].momenta, shared.momenta)
    close(carried_out(case, processes).params, assembled.outcome().params)
    assert distance(carried_out(case), obvious(case)) > 1e-6  # there, each keeps its own


# Levels


@in_one_and_four
@pytest.mark.parametrize(("topology", "schedules"), TREES, ids=str)
def test_nested_levels_are_averages_of_blocks_of_models(
    processes: int, topology: str, schedules: tuple
) -> None:
    case = Case(topology, schedules, net="conv", **INNERS["decay"])
    got, expected = carried_out(case, processes), obvious(case)
    close(got.params, expected.params)
    close(got.buffers, expected.buffers)
    close(got.momenta, expected.momenta)


@in_one_and_four
@pytest.mark.parametrize(("topology", "schedules"), TREES, ids=str)
def test_levels_that_average_on_gradients_are_the_same_without_momentum(
    processes: int, topology: str, schedules: tuple
) -> None:
    case = Case(topology, schedules, net="conv", weight_decay=0.01)
    by_gradients = replace(case, average="gradients")
    close(carried_out(by_gradients, processes).params, obvious(case).params)


@in_one_and_four
@pytest.mark.parametrize(
    ("topology", "schedules"),
    [
        ("4x2", (every(3), every(1))),  # H^b = 1
        ("1x8", (every(3), every(5))),  # one block: the outer level has one member
        ("8x1", (every(1), every(3))),  # blocks of one, H H^b = 3
        ("8x1", (every(3), every(1))),
        ("2x2x2", (every(3), every(1), every(1))),
    ],
    ids=str,
)
def test_hierarchies_that_are_flat(processes: int, topology: str, schedules: tuple) -> None:
    case = Case(topology, schedules, net="conv", **INNERS["decay"])
    flat = replace(case, topology="8", schedules=(every(3),))
    got, expected = carried_out(case, processes), carried_out(flat, processes)
    close(got.params, expected.params)
    close(got.momenta, expected.momenta)


@in_one_and_four
@on_either
@pytest.mark.parametrize("topology", ["2+1+1", "1+3"])
def test_blocks_of_unequal_size_weigh_as_many_workers_as_they_have(
    processes: int, average: str, topology: str
) -> None:
    case = Case(topology, (every(3), every(1)), net="conv", average=average, **INNERS["decay"])
    flat = replace(case, topology="4", schedules=(every(3),))
    close(carried_out(case, processes).params, carried_out(flat, processes).params)


@in_one_and_four
@pytest.mark.parametrize(("h", "within"), [(1, 15), (2, 7), (4, 3), (8, 1), (16, 0)])
def test_sixteen_steps_cross_the_nodes_once(processes: int, h: int, within: int) -> None:
    """The counts of Lin et al. 2020, table of hierarchical local SGD (H H^b = 16).

    A sync over nodes begins with one inside each, which the paper counts as a part of it.
    """
    case = Case("4x2", (every(h), every(16 // h)), steps=16)
    assert carried_out(case, processes).calls == (within + 1, 1)
    assert odometer(case.schedules, 16).count(1) == within


def test_a_round_that_the_budget_cuts_short_ends_with_a_sync_of_all() -> None:
    case = Case("4x2", (every(3), every(2)), steps=8)
    outcome = carried_out(case)
    for parameter in outcome.params.values():
        assert torch.equal(parameter, parameter[:1].expand_as(parameter))
    close(outcome.params, obvious(case).params)


def test_what_has_averaged_at_the_last_step_does_not_average_again() -> None:
    inside_only = Case("4x2", (every(3), every(9)), steps=6, outers=(outer.sgd(1, 0.5), None))
    assert carried_out(inside_only).calls == (2, 1)
    all_of_it = Case("4x2", (every(3), every(2)), steps=6)
    assert carried_out(all_of_it).calls == (2, 1)
    gradients = Case("4", (every(1),), steps=6, average="gradients")
    assert carried_out(gradients).calls == (6,)


def test_a_run_that_is_over_stays_as_it_is() -> None:
    assembled = Assembled.of(Case("4", (every(3),), outers=(outer.sgd(1, 0.9),)))
    assembled.go()
    done = copy.deepcopy(assembled.outcome())
    steps: list[int] = []
    assembled.go(after_step=lambda: steps.append(assembled.workers.step))
    same_bits(done, assembled.outcome())
    assert done.calls == assembled.outcome().calls
    assert steps == []


def test_a_run_goes_on_under_other_schedules_where_a_round_has_ended() -> None:
    """Phase 1 once, then several second phases from it."""
    first = Case("4", (every(1),), steps=5, **INNERS["decay"])
    assembled = Assembled.of(first)
    assembled.go()
    assembled.case = replace(first, schedules=(every(4),), steps=13)
    assembled.go()
    whole = replace(first, schedules=(post_local(4, after=5),), steps=13)
    same_bits(assembled.outcome(), carried_out(whole))


@pytest.mark.parametrize(
    "case",
    [
        Case("4x2", (every(2), every(3)), steps=14, **INNERS["decay"]),
        Case("4", (post_local(3, after=4),), average="gradients", **INNERS["decay"]),
        Case("4", (every(3),), outers=(outer.block_momentum(0.3),)),
    ],
    ids=lambda case: f"{case.topology}-{case.average}",
)
def test_rounds_that_open_during_a_sync_are_the_same(case: Case) -> None:
    """The events as `LocalSGD` brings them about, on the trainer's workers."""
    assembled = Assembled.of(case)
    workers = assembled.workers
    loop = Loop(
        case.schedules,
        Stacks([assembled.levels]),
        GradientLevels(assembled.gradients),
        assembled.position,
        lambda step: Progress(step=step),
        case.learning_rate,
    )
    loop.open()
    for step in range(case.steps):
        loop.begin()
        workers.backward()
        loop.gradients.average()
        workers.apply(case.learning_rate(step))
        if loop.stepped():
            loop.sync(meanwhile=loop.open)
    loop.finish()
    assert loop.all_averaged
    assert not loop.finish()
    same_bits(assembled.outcome(), carried_out(case))


# Steps, and what is called when


def test_after_step_comes_once_after_every_step_when_it_has_been_averaged() -> None:
    case = Case("4x2", (every(2), every(2)), steps=7)
    assembled = Assembled.of(case)
    seen: list[tuple[int, int]] = []

    def look() -> None:
        rows = assembled.workers.params
        whole = torch.equal(rows, rows[:1].expand_as(rows))
        blocks = torch.equal(rows[::2], rows[1::2])
        seen.append((assembled.workers.step, 2 if whole else 1 if blocks else 0))

    assembled.go(after_step=look)
    depths = odometer(case.schedules, 7)
    assert seen == [(step + 1, depth) for step, depth in enumerate([*depths[:-1], 2])]


def test_learning_rates_are_those_of_the_step() -> None:
    asked: list[int] = []

    def rate(step: int) -> float:
        asked.append(step)
        return 0.1

    Assembled.of(Case("2", (every(2),), steps=5, learning_rate=rate)).go()
    assert sorted(set(asked)) == list(range(5))


def test_rounds_begin_with_the_rate_of_their_first_step() -> None:
    told: list[list[float]] = [[], [], []]

    class Listening:
        def __init__(self, level, heard: list[float]) -> None:
            self.level, self.heard = level, heard

        def __getattr__(self, name: str):
            return getattr(self.level, name)

        def begin_round(self, learning_rate: float) -> None:
            self.heard.append(learning_rate)

    case = Case(
        "2x2x2", (every(1), every(2), every(2)), steps=8, learning_rate=lambda s: 1 / (1 + s)
    )
    assembled = Assembled.of(case)
    assembled.levels = [Listening(*pair) for pair in zip(assembled.levels, told, strict=True)]
    assembled.go()
    assert told == [[1 / (1 + s) for s in range(0, 8, every_)] for every_ in (1, 2, 4)]


# Resuming


RESUMED = [
    Case("4", (every(3),), **INNERS["decay"]),
    Case("4x2", (every(2), every(3)), net="conv", **INNERS["decay"]),
    Case("4x2", (every(1), post_local(3, after=5)), average="gradients", momentum=0.9),
    Case(
        "2x2x2",
        (every(2), every(2), every(2)),
        outers=(None, outer.sgd(0.9, 0.5), outer.block_momentum(0.3)),
    ),
    Case(
        "4x2", (every(3), every(2)), outers=(outer.block_momentum(0.3), outer.block_momentum(0.5))
    ),
    Case("2+1+1", (every(2), every(2)), outers=(outer.sgd(1.0, 0.2), outer.block_momentum(0.5))),
    Case("2+1+1", (every(1), every(3)), average="gradients", momentum=0.9),
]


@pytest.mark.parametrize("case", RESUMED, ids=lambda case: f"{case.topology}-{case.average}")
def test_resumed_at_any_step_gives_the_bits_of_an_undisturbed_run(case: Case) -> None:
    saved: list[dict] = []
    undisturbed = Assembled.of(case)
    undisturbed.go(after_step=lambda: saved.append(snapshot(undisturbed)))
    expected = undisturbed.outcome()
    assert len(saved) == case.steps
    for state in saved:
        resumed = Assembled.of(case)
        restore(resumed, state)
        resumed.go()
        same_bits(resumed.outcome(), expected)


def snapshot(assembled: Assembled) -> dict:
    return copy.deepcopy(
        {
            "step": assembled.workers.step,
            "rows": [assembled.workers.state(row) for row in range(len(assembled.workers.ids))],
            "levels": [level.state() for level in assembled.levels],
            "position": assembled.position,
        }
    )


def restore(assembled: Assembled, state: dict) -> None:
    state = copy.deepcopy(state)
    assembled.workers.step = state["step"]
    for row, saved in enumerate(state["rows"]):
        assembled.workers.load(row, saved)
    for level, saved in zip(assembled.levels, state["levels"], strict=True):
        level.load(saved)
    assembled.position = state["position"]
