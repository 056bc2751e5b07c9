"""A preview of a run, printed before it starts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from localsgd.basics.units import count, percent, plural, size
from localsgd.results.labels import beyond_averaging, level_name, options
from localsgd.rows.layout import Layout
from localsgd.show.forecast import Phase, Turn, foreseen, phases, syncs, turns
from localsgd.show.sending import Sent, sent
from localsgd.show.sparklines import sparkline
from localsgd.train.config.learning_rate import StepDecay
from localsgd.train.config.plan import Plan
from localsgd.train.config.unused import unused_settings
from localsgd.train.engine.execution import locals_due

WIDTH = 40
"""Width of a picture in characters."""
DOTS = 16
"""Most local steps of a round that are drawn one by one."""
PHASES = 5
"""Most phases that are shown; of more, those in the middle are left out."""


def preview(
    plan: Plan, *, layout: Layout, processes: int, by_worker: bool = False
) -> RenderableType:
    """A preview of the run: workers, syncs, their cost, and the learning rate.

    Args:
        plan: of a completed run.
        layout: of a worker's model.
        processes: the number of processes.
        by_worker: whether evaluations look at each worker, as `--log` wants.
    """
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, value in _rows(plan, layout, processes):
        grid.add_row(name, value)
    if by_worker:
        grid.add_row("logged", _logged(plan))
    return Group(grid, Text())


def _rows(plan: Plan, layout: Layout, processes: int) -> Iterator[tuple[str, RenderableType]]:
    run = plan.run
    parameters = sum(slot.length for slot in layout.slots)
    yield "task", f"{run.task}: {count(plan.samples)} training samples"
    yield "model", f"{run.model}{options(run, run.model)}: {count(parameters)} parameters"
    yield "workers", _workers(plan, processes)
    yield "method", plan.method.title + options(run, run.method)
    yield (
        "budget",
        f"{plural(run.epochs or 0.0, 'epoch')}: {plural(plan.steps, 'step')} of "
        f"{plan.topology.workers} x {run.batch} = {plural(plan.batch, 'sample')}",
    )
    beyond = beyond_averaging(run)
    if beyond:
        yield "syncs", ", ".join(beyond)
    yield "rounds", _rounds(plan)
    yield "traffic", _traffic(plan, sent(plan, layout))
    yield "learning rate", _learning_rate(plan)
    unread = unused_settings(run)
    if unread:
        yield "no effect", f"{', '.join(unread)}: nothing in this run reads {_them(unread)}"


def _logged(plan: Plan) -> str:
    if not locals_due(plan.run, by_worker=True):
        return "drift at each evaluation"
    more = plural(plan.topology.workers, "more evaluation")
    return f"drift and local models at each evaluation: {more} (left out by --evaluate-local never)"


def _them(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _workers(plan: Plan, processes: int) -> str:
    topology = plan.topology
    text = plural(topology.workers, "worker")
    if topology.unequal:
        text += f" in blocks of {', '.join(map(str, topology.unequal))}"
    elif topology.levels > 1:
        text += f" as {topology} ({plural(topology.sizes[-1], 'block')}"
        text += " of " + " of ".join(map(str, reversed(topology.sizes[:-1]))) + ")"
    hosts = plural(processes, "process", "processes")
    return f"{text}, {topology.workers // processes} in each of {hosts}"


def _rounds(plan: Plan) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    if not foreseen(plan):
        start = next(turns(plan))
        first = Phase(tuple(_alike(plan, start)))
        grid.add_row(
            "at first", _lengths(first), Text(draw(first, WIDTH), no_wrap=True, overflow="ellipsis")
        )
        note = "H follows what the run itself shows; only its start is known"
        return Group(grid, *(Text(line, style="dim") for line in (_legend(plan), note)))
    found = phases(plan)
    for phase in _shown(found):
        if phase is None:
            grid.add_row("…", "", f"{len(found) - PHASES + 1} more phases")
            continue
        drawn = Text(draw(phase, WIDTH), no_wrap=True, overflow="ellipsis")
        grid.add_row(_when(plan, phase), _lengths(phase), drawn)
    return Group(grid, Text(_legend(plan), style="dim"))


def _alike(plan: Plan, start: Turn) -> Iterator[Turn]:
    """The turns that begin the run, as long as H stays."""
    return itertools.takewhile(lambda turn: turn.lengths == start.lengths, turns(plan))


def _shown(found: list[Phase]) -> list[Phase | None]:
    if len(found) <= PHASES:
        return list(found)
    first = PHASES - 2
    return [*found[:first], None, found[-1]]


def _when(plan: Plan, phase: Phase) -> str:
    first, end = (step / plan.steps_per_epoch for step in (phase.first, phase.end))
    return f"epochs {first:.1f} to {end:.1f}"


def _lengths(phase: Phase) -> str:
    h, *outer = phase.lengths
    if len(outer) > 1:
        return f"H = {h}, then {', '.join(map(str, outer))}"
    return f"H = {h}" + (f", H^b = {outer[0]}" if outer else "")


def draw(phase: Phase, width: int) -> str:
    """The first rounds of a phase that fit: `.1.1.1 …`; long rounds as `...(128 steps)1`."""
    drawn = ""
    for turn in phase.turns:
        dots = "." * turn.local_steps
        if turn.local_steps > DOTS:
            dots = f"...({count(turn.local_steps)} steps)"
        mark = dots + (str(turn.depth) if turn.depth else "")
        if drawn and len(drawn) + len(mark) > width:
            return drawn + " …"
        drawn += mark
    return drawn


def _legend(plan: Plan) -> str:
    levels = plan.topology.levels
    if levels == 1:
        return ". a local step; 1 all workers synchronise"
    names = [f"{level + 1} {level_name(level, levels)}" for level in range(levels)]
    names[1:] = [f"{name} too" for name in names[1:]]
    return ". a local step; average: " + ", ".join(names)


def _traffic(plan: Plan, levels: list[Sent]) -> RenderableType:
    grid, known, most = Table.grid(padding=(0, 2)), foreseen(plan), 0.0
    for level, (number, of_level) in enumerate(zip(syncs(plan), levels, strict=True)):
        most += of_level.whole * plan.steps / number
        grid.add_row(
            level_name(level, len(levels)),
            ("" if known else "if H stays: ")
            + f"{plural(number, 'sync')} ({percent(number / plan.steps)} of steps)",
            f"{size(of_level.whole)} per worker",
        )
    each = " or ".join(dict.fromkeys(size(of_level.once) for of_level in levels if of_level.once))
    how = [f"{each or size(0)} each time"]
    unknown = f"depends on the run: at most {size(most)} per worker, by a sync after every step"
    if plan.delay.fragments > 1:
        how.append(f"one of {plan.delay.fragments} fragments in turns")
    if plan.run.compression != "none":
        how.append(f"compressed by {plan.run.compression}")
    notes = [] if known else [Text(unknown)]
    return Group(grid, *notes, Text(", ".join(how), style="dim"))


def _learning_rate(plan: Plan) -> RenderableType:
    rate = plan.learning_rate
    words = f"{rate.peak:g}"
    if rate.warmup_steps:
        words = f"{rate.start:g} to {rate.peak:g} over {plural(rate.warmup_steps, 'step')}"
    decays = [count(step) for step in rate.decays if step < plan.steps]
    if not isinstance(rate, StepDecay):
        words += f", falling to {rate.floor:g} along a cosine of {plural(rate.cycle, 'step')}"
    elif decays:
        words += f", x {rate.factor:g} at step {' and '.join(decays)}"
    return Group(Text(sparkline(rate, plan.steps, WIDTH)), Text(words))
