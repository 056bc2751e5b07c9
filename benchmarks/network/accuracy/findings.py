"""The tables: what was trained at each rate, steps on a very slow link, and what has to hold."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.network import rates
from benchmarks.network.accuracy.arms import (
    ARMS,
    BOUND,
    DDP,
    GATHERED,
    LOCAL,
    PHASES,
    POST_LOCAL,
    SLOW,
    TWO_PHASE,
    WARMED_UP,
)
from benchmarks.network.accuracy.laps import Laps
from benchmarks.network.accuracy.outcome import WITHIN, Outcome
from benchmarks.network.accuracy.setting import Setting
from benchmarks.network.accuracy.store import Store
from benchmarks.report import Finding
from benchmarks.timing import Spread, ratios
from localsgd.basics.paired import Interval, paired

SOONER = {LOCAL: 1.6, WARMED_UP: 1.6, POST_LOCAL: 1.25, GATHERED: 1.7, TWO_PHASE: 1.7}
"""Smallest speed-up over DDP with as many samples, if the network halves DDP's speed."""
QUICKER_STEPS = 7.0
"""Smallest speed-up of steps with signs over DDP's on a very slow link, in two equal phases."""


def trained(outcome: Outcome, setting: Setting) -> list[Finding]:
    """A line for each arm at one rate."""
    return [_trained(outcome, arm, setting) for arm in outcome.arms()]


def _trained(outcome: Outcome, arm: str, setting: Setting) -> Finding:
    own = [run for run, _ in outcome.pairs(arm)]
    seconds = statistics.median(run.seconds[-1] for run in own)
    accuracy = statistics.mean(run.last for run in own)
    times, to_accuracy = outcome.times(arm), outcome.times_to_accuracy(arm)
    cells = {
        "s": f"{seconds:.1f}",
        "ms a step": f"{1000 * seconds / setting.steps:.0f}",
        "times sooner": f"[bold]{1 / times.median:.2f}[/]",
        "least - most": f"{1 / times.most:.2f} - {1 / times.least:.2f}",
        "accuracy %": f"{accuracy:.2f}",
        "points from DDP": "" if arm == DDP else _points(outcome, arm),
        f"times sooner at DDP's - {WITHIN:g}": _to_accuracy(to_accuracy),
        "kB a node a step": f"{statistics.mean(run.node_bytes for run in own) / 1000:,.1f}",
    }
    figures = {
        "name": arm,
        "bits_per_second": outcome.rate,
        "ddp_share": asdict(outcome.share),
        "seeds": outcome.seeds(arm),
        "seconds": [round(run.seconds[-1], 3) for run in own],
        "cpu_seconds_a_step": [round(run.cpu_seconds, 4) for run in own],
        "node_bytes_a_step": [round(run.node_bytes) for run in own],
        "accuracy": [round(run.last, 2) for run in own],
        "of_ddp_time": asdict(times),
        "of_ddp_time_to_accuracy": to_accuracy,
    }
    return Finding(title(outcome), ARMS[arm].named(setting), cells, figures)


def title(outcome: Outcome) -> str:
    return f"{rates.named(outcome.rate)}, DDP's share {outcome.share.median:.2f}"


def _points(outcome: Outcome, arm: str) -> str:
    """The arm's accuracy minus DDP's: mean, and 95 % interval if there is one."""
    below = paired(outcome.points_below(arm))
    mean = f"{0 - below.mean:+.2f}"
    if below.n < 2:
        return mean
    return f"{mean} ({0 - below.high:+.2f} to {0 - below.low:+.2f})"


def _to_accuracy(ratios_: Sequence[float | None]) -> str:
    """The median over seeds, and how many reached the target if not all did."""
    reached = [one for one in ratios_ if one is not None]
    if not reached:
        return "not reached"
    median = f"{1 / statistics.median(reached):.2f}"
    short = len(reached) < len(ratios_)
    return f"{median} ({len(reached)} of {len(ratios_)})" if short else median


def slow(store: Store, setting: Setting) -> list[Finding]:
    """A line for each arm on each very slow link."""
    found = []
    for rate, laps in _slow_laps(store):
        for arm, own in laps.items():
            times = ratios(own, laps[DDP])
            cells = {
                "ms a step": f"{1000 * statistics.median(own):.0f}",
                "times sooner": f"[bold]{1 / times.median:.2f}[/]",
                "least - most": f"{1 / times.most:.2f} - {1 / times.least:.2f}",
            }
            figures = {"name": arm, "bits_per_second": rate, "step_seconds": own}
            case = f"{rates.named(rate)}, steps alone"
            found.append(Finding(case, ARMS[arm].named(setting), cells, figures))
    return found


def _slow_laps(store: Store) -> Iterator[tuple[int, Laps]]:
    for one in store.all(kind="laps", arms=list(SLOW)):
        yield one["rate"], one["step_seconds"]


def claims(store: Store, found: Sequence[Outcome], setting: Setting) -> list[Finding]:
    """Times against DDP's, accuracies against DDP's, and steps on a very slow link."""
    return [
        *(one for outcome in found for one in _claims(outcome, setting)),
        *(_steps(rate, laps, arm, setting) for rate, laps in _slow_laps(store) for arm in PHASES),
    ]


def _claims(outcome: Outcome, setting: Setting) -> Iterator[Finding]:
    for arm, factor in SOONER.items():
        if outcome.seeds(arm):
            name, case = ARMS[arm].named(setting), title(outcome)
            times = outcome.times(arm)
            figures = {"name": arm, "claim": "time", "of_ddp_time": asdict(times)}
            cells = _ratio("time by DDP's", times, outcome.share.median)
            yield Finding(case, name, cells, figures, times.median, 1 / factor)
            below = paired(outcome.points_below(arm))
            figures = {"name": arm, "claim": "accuracy", "points_below_ddp": _known(below)}
            cells = {"what": "points below DDP", "result": f"[bold]{below.mean:+.2f}[/]"}
            if below.n > 1:
                cells["spread"] = f"{below.low:+.2f} to {below.high:+.2f}"
            yield Finding(case, name, cells, figures, below.mean, WITHIN)


def _steps(rate: int, laps: Laps, arm: str, setting: Setting) -> Finding:
    phases = zip(*(laps[phase] for phase in PHASES[arm]), strict=True)
    own = [(first + second) / 2 for first, second in phases]
    times, least = ratios(own, laps[DDP]), ratios(laps[BOUND], laps[DDP])
    figures = {
        "name": arm,
        "claim": "steps",
        "of_ddp_time": asdict(times),
        "of_ddp_time_without_communication": asdict(least),
    }
    cells = _ratio("time of a step by DDP's", times, least.median)
    case = f"{rates.named(rate)}, steps alone"
    return Finding(case, ARMS[arm].named(setting), cells, figures, times.median, 1 / QUICKER_STEPS)


def _ratio(what: str, times: Spread, least: float) -> dict[str, str]:
    """Cells of a claim about time, with what a loop without any communication would have."""
    return {
        "what": what,
        "result": f"[bold]{times.median:.3f}[/]",
        "spread": f"{times.least:.3f} to {times.most:.3f}",
        "without communication": f"{least:.3f}",
    }


def _known(interval: Interval) -> dict[str, Any]:
    """The interval as a record, without the numbers that a single seed doesn't give."""
    return {key: value for key, value in asdict(interval).items() if not math.isnan(value)}
