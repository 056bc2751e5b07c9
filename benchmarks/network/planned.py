"""What `localsgd plan` predicts of the time of a step, beside what it takes, over H and link rates.

    python -m benchmarks.network.planned

alpha and beta are measured on the shaped links as `plan` measures them, the compute of a step is
that of the loop without communication, and the time of a step for each H follows. Then each H runs.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence

from benchmarks import crew as alone
from benchmarks.network import rates, tuning
from benchmarks.network.command import ended
from benchmarks.network.contestants import BOUND, CONTESTANTS
from benchmarks.network.crew import crew
from benchmarks.network.laboratory import laboratory
from benchmarks.network.race import Laps, Race
from benchmarks.report import Finding, publish
from localsgd.cost.allreduce import Link
from localsgd.cost.planner import Plan, Stage

NODES, BATCH, TURNS = 4, 32, 5
RATES = ("10mbit", "100mbit", "1gbit")
LOCAL_STEPS = {"h1-apart": 1, "h2": 2, "h4": 4, "h8": 8, "h16": 16}
WITHIN = 1.15
"""Largest allowed ratio between predicted and measured time."""


def findings(rate: int, found: Link, laps: Mapping[str, Laps], scalars: int) -> list[Finding]:
    """Predicted and measured for each H."""
    compute = statistics.median(laps[BOUND].seconds)
    plan = Plan(compute, scalars, (Stage(NODES, found),))
    return [_finding(rate, name, plan, laps[name]) for name in LOCAL_STEPS]


def _finding(rate: int, name: str, plan: Plan, laps: Laps) -> Finding:
    predicted = plan.seconds([LOCAL_STEPS[name]])
    measured = statistics.median(laps.seconds)
    link = plan.stages[0].link
    cells = {
        "predicted ms a step": f"{1000 * predicted:.1f}",
        "measured": f"{1000 * measured:.1f}",
        "predicted / measured": f"{predicted / measured:.3f}",
        "alpha ms": f"{1000 * link.alpha:.2f}",
        "beta as Mbit/s": f"{8e-6 / link.beta:.1f}" if link.beta else "",
    }
    figures = {
        "predicted_seconds": predicted,
        "measured_seconds": measured,
        "step_seconds": laps.seconds,
        "alpha": link.alpha,
        "beta": link.beta,
    }
    off = math.exp(abs(math.log(predicted / measured)))
    return Finding(rates.named(rate), CONTESTANTS[name].title, cells, figures, off, WITHIN)


def measure(model: str, turns: int) -> list[Finding]:
    found = []
    names = [BOUND, *LOCAL_STEPS]
    with laboratory(NODES) as made, crew(made, environment=alone.KEEPING) as workers:
        scalars = workers.call(tuning.model_scalars, model)[0]
        race = Race(made, workers, model, BATCH)
        for name in names:
            race.enter(name, CONTESTANTS[name].steps)
        for rate in map(rates.bits_per_second, RATES):
            made.shape(rate)
            own = workers.call(tuning.link)[0]
            found += findings(rate, own, race.take_turns(names, turns), scalars)
    return found


@ended
def main(arguments: Sequence[str] | None = None) -> bool:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network.planned")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args(arguments)
    found = measure(options.model, options.turns)
    return publish("network-planned", f"Planned and measured, {options.model}", found)


if __name__ == "__main__":
    sys.exit(main())
