"""The forecast of a plan against the core loop that carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest

from localsgd.loop import train
from localsgd.schedule.rounds import Position, picture
from localsgd.show.forecast import phases, progress_at, sync_steps, syncs, turns
from tests.show.records import plan_of


@dataclass
class Counted:
    """Steps and syncs, and nothing else."""

    step: int = 0
    syncs: int = 0

    def backward(self) -> None:
        pass

    def apply(self, learning_rate: float) -> None:
        self.step += 1

    def average(self) -> None:
        self.syncs += 1

    may_differ = False
    final_average = average

    def share(self) -> None:
        pass

    def catch_up(self) -> None:
        pass

    def begin_round(self, learning_rate: float) -> None:
        pass


PLANS = [
    {"method": "mini-batch", "topology": "4x2"},
    {"method": "local", "local_steps": (7,)},
    {"method": "post-local", "local_steps": (8,)},
    {"method": "post-local", "local_steps": (5,), "switch": "step:13"},
    {"method": "local-warmup", "local_steps": (16,), "step_warmup": 3.0},
    {"method": "hierarchical", "topology": "4x2", "local_steps": (2, 4)},
    {"method": "hierarchical", "topology": "2x2x2", "local_steps": (3, 2, 2)},
    {"method": "hierarchical-post-local", "topology": "4x2", "local_steps": (2, 5)},
]


@pytest.mark.parametrize("settings", PLANS, ids=lambda item: f"{item['method']}")
@pytest.mark.parametrize("average", ["models", "gradients"])
@pytest.mark.parametrize("epochs", [3.0, 4.3])
def test_counts_are_those_of_the_core_loop(settings: dict, average: str, epochs: float) -> None:
    plan = plan_of(epochs=epochs, **settings)
    workers = Counted()
    levels = [Counted() for _ in range(plan.topology.levels)]
    gradients = [Counted() for _ in levels] if average == "gradients" else []
    train(
        workers,
        levels,
        plan.schedules,
        plan.learning_rate,
        steps=plan.steps,
        position=Position.start(len(levels)),
        progress=partial(progress_at, plan),
        gradients=gradients,
    )
    done = [level.syncs for level in levels]
    for level, counted in enumerate(gradients):
        done[level] += counted.syncs
    assert syncs(plan) == done


@pytest.mark.parametrize("settings", PLANS, ids=lambda item: f"{item['method']}")
def test_turns_are_the_picture_of_the_schedules(settings: dict) -> None:
    plan = plan_of(epochs=3, **settings)
    drawn = "".join("." * turn.local_steps + str(turn.depth or "") for turn in turns(plan))
    assert drawn == picture(plan.schedules, plan.steps)
    assert [turn for phase in phases(plan) for turn in phase.turns] == list(turns(plan))


def test_phases_part_at_the_switch() -> None:
    first, second = phases(plan_of(epochs=3, local_steps=(4,), switch="step:10"))
    assert (first.first, first.end, first.lengths) == (0, 10, (1,))
    assert (second.first, second.end, second.lengths) == (10, 33, (4,))


def test_steps_of_syncs_include_the_last() -> None:
    plan = plan_of(epochs=3, method="local", local_steps=(10,))
    assert plan.steps == 33
    assert sync_steps(plan, 0) == [10, 20, 30, 33]
    assert syncs(plan, until=29) == [2]
