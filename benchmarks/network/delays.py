"""A declared delay for each global synchronisation: what it costs, and when it costs nothing.

4 workers as 2 blocks of 2 in one process, H = 2, Hb = 8, so that all synchronise every 16 steps.
The paper (appendix, hierarchical local SGD) has delays of 1 s and of 50 s.

- 1 s, really waited for: delay / (H Hb) a step, and nothing for delayed averaging. B is chosen so
  that 16 steps take longer than the delay.
- 50 s, over Hb: on a clock that is simulated. Its lines say so; compute is measured.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from functools import partial

import torch

from benchmarks import crew, workloads
from benchmarks.network.command import ended, turns_of
from benchmarks.report import Finding, publish
from benchmarks.timing import Spread, take_turns
from benchmarks.workloads import random_cifar
from localsgd.averaging.placement import with_latency
from localsgd.train.engine.assembly import Assembly
from localsgd.wire.latency import WALL, Clock, SimulatedClock

MODEL, BATCH, MOST_BATCH = "small-cnn", 32, 256
TOPOLOGY, LOCAL_STEPS, BLOCK_STEPS = "2x2", 2, 8
ROUND = LOCAL_STEPS * BLOCK_STEPS
ROUND_SECONDS = 1.4
"""What a global round is made to take by the choice of B: longer than the delay of 1 s."""

TURNS = 5
TOLERANCE = 0.05
LONG_SECONDS = 50.0
LONG_BLOCK_STEPS = (1, 2, 4, 8, 16)

PLAIN, LATE, HIDDEN = "no delay", "1 s", "1 s, delayed averaging"


def assembled(
    seconds: float,
    clock: Clock = WALL,
    method_delay: int = 0,
    block_steps: int = BLOCK_STEPS,
    batch: int = BATCH,
) -> Assembly:
    """The trainer, hierarchical, whose global syncs come so many seconds late."""
    return workloads.assembled(
        random_cifar(1024),
        MODEL,
        batch,
        placed=lambda placement: with_latency(placement, [0.0, seconds], clock),
        lr=0.01,
        method="hierarchical",
        topology=TOPOLOGY,
        local_steps=(LOCAL_STEPS, block_steps),
        delay=method_delay,
    )


def step_seconds(assembly: Assembly, clock: Clock, period: int) -> float:
    """A step's, on `clock`, over one global round: from the middle of one to that of the next.

    Two rounds are trained; the end of training, where what is under way is waited for, is left out.
    """
    start, marks = assembly.workers.step, {}

    def mark() -> None:
        marks[assembly.workers.step - start] = clock.now()

    assembly.advance(mark, steps=start + 2 * period)
    middle = period // 2
    return (marks[middle + period] - marks[middle]) / period


def short_here(turns: int) -> list[Finding]:
    """The delay of 1 s, on the wall clock."""
    trial = step_seconds(assembled(0.0), WALL, ROUND)
    batch = min(MOST_BATCH, math.ceil(BATCH * ROUND_SECONDS / (ROUND * trial)))
    contestants = {
        PLAIN: assembled(0.0, batch=batch),
        LATE: assembled(1.0, batch=batch),
        HIDDEN: assembled(1.0, method_delay=1, batch=batch),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}

    def act(name: str) -> None:
        seconds[name].append(step_seconds(contestants[name], WALL, ROUND))

    take_turns({name: partial(act, name) for name in contestants}, turns)
    plain = seconds[PLAIN]
    case = f"1 s, wall clock, H = {LOCAL_STEPS}, Hb = {BLOCK_STEPS}, B = {batch}"
    due = 1.0 / ROUND
    found = []
    for name, own in seconds.items():
        extra = Spread.of([one - base for one, base in zip(own, plain, strict=True)])
        cells = {
            "ms a step": f"{1000 * statistics.median(own):.1f}",
            "more than without": f"{1000 * extra.median:.1f}",
            "its quartiles": f"{1000 * extra.lower:.1f} - {1000 * extra.upper:.1f}",
            "delay / (H Hb)": f"{1000 * due:.1f}",
        }
        figures = {"turns": turns, "step_seconds": own, "extra_seconds": vars(extra)}
        result, bound = _judged(name, extra.median, due)
        found.append(Finding(case, name, cells, figures, result, bound))
    return found


def _judged(name: str, extra: float, due: float) -> tuple[float | None, float | None]:
    """How far the delay's cost is from what it should be, in shares of the delay."""
    if name == PLAIN:
        return None, None
    expected = due if name == LATE else 0.0
    return abs(extra - expected) / due, TOLERANCE


def long_here() -> list[Finding]:
    """The delay of 50 s, on a simulated clock."""
    found = []
    for block_steps in LONG_BLOCK_STEPS:
        clock = SimulatedClock()
        assembly = assembled(LONG_SECONDS, clock, block_steps=block_steps)
        period = LOCAL_STEPS * block_steps
        took = step_seconds(assembly, clock, period)
        due = LONG_SECONDS / period
        cells = {"ms a step": f"{1000 * took:.1f}", "delay / (H Hb)": f"{1000 * due:.1f}"}
        figures = {"simulated": clock.simulated, "seconds": took}
        case = f"{LONG_SECONDS:g} s, simulated clock, H = {LOCAL_STEPS}"
        found.append(Finding(case, f"Hb = {block_steps}", cells, figures))
    return found


def measure(turns: int = TURNS) -> list[Finding]:
    return [*crew.run(1, short_here, turns), *crew.run(1, long_here)]


@ended
def main(arguments: Sequence[str] = ()) -> bool:
    turns = turns_of(arguments, "delays", TURNS)
    torch.set_num_threads(1)
    return publish("network-delays", "A delay for each global sync", measure(turns))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
