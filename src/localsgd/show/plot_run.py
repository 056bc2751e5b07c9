"""One run in one picture: loss, quality, learning rate, and when levels averaged."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from localsgd.basics.units import plural
from localsgd.landscape.figures.style import COLOURS
from localsgd.results.grouping import Record
from localsgd.results.labels import level_name, local_steps
from localsgd.show.canvas import canvas, plain_log_axis, quality_axis
from localsgd.show.forecast import foreseen, sync_steps
from localsgd.train.config.plan import Plan
from localsgd.train.engine.run_folder import Folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def run(folder: Folder, path: Path) -> None:
    """Draws `folder`'s evaluations, and what its plan says of the learning rate and syncs.

    The last panel has a mark for each sync: how many local steps were taken since the one
    before. Where H follows the run's loss or time, it has one for each evaluation: how many they
    were on average since the evaluation before.
    """
    record = Record.read(folder)
    with canvas(path, 8.5, 6.0) as figure:
        panels = figure.subplots(2, 2, sharex=True)
        _losses(panels[0, 0], record)
        _quality(panels[0, 1], record)
        plan = _plan(record)
        if plan is not None:
            done = record.last.get("steps", record.rows[-1]["step"])
            _learning_rate(panels[1, 0], plan, done)
            _syncs(panels[1, 1], plan, record, done)
        for axes in panels[1]:
            axes.set_xlabel("epochs")
        made = record.run
        figure.suptitle(
            f"{made.method}, H = {local_steps(made)}: {made.task}, {made.model}, "
            f"{plural(made.workers or 1, 'worker')} ({made.topology})",
            fontsize=11,
        )


def _plan(record: Record) -> Plan | None:
    """The run's plan. Its training samples follow from any evaluation: N = K B step / epoch."""
    if not record.rows:
        return None
    row = record.rows[-1]
    batch = (record.run.workers or 1) * (record.run.batch or 1)
    return Plan(record.run, round(batch * row["step"] / row["epoch"]))


def _losses(axes: Axes, record: Record) -> None:
    epochs = [row["epoch"] for row in record.rows]
    for name, colour, style in (("train", COLOURS[0], "o-"), ("test", COLOURS[1], "s--")):
        losses = [row[f"{name}_loss"] for row in record.rows]
        axes.plot(epochs, losses, style, color=colour, label=name)
    plain_log_axis(axes)
    axes.set_ylabel("loss")
    axes.legend()


def _quality(axes: Axes, record: Record) -> None:
    if not record.rows:
        return
    metric = record.metric
    epochs = [row["epoch"] for row in record.rows]
    values = [row[metric.key] for row in record.rows]
    drawn = [metric.scale * value for value in values]
    axes.plot(epochs, drawn, "o-", color=COLOURS[0], label="averaged model")
    local = [(row["epoch"], row[metric.local]) for row in record.rows if metric.local in row]
    if local:
        axes.plot(
            [epoch for epoch, _ in local],
            [metric.scale * value for _, value in local],
            "s--",
            color=COLOURS[1],
            label="mean of the workers' own",
        )
        axes.legend()
        values += [value for _, value in local]
    quality_axis(axes, metric, values)
    axes.set_ylabel(metric.axis)


def _learning_rate(axes: Axes, plan: Plan, done: int) -> None:
    rate = plan.learning_rate
    every = max(1, plan.steps // 2000)
    steps = sorted(
        {*range(0, done, every), *(d for d in rate.decays if d < done), max(0, done - 1)}
    )
    epochs = [step / plan.steps_per_epoch for step in steps]
    axes.plot(epochs, [rate(step) for step in steps], color=COLOURS[2], drawstyle="steps-post")
    plain_log_axis(axes)
    axes.set_ylabel("learning rate")


def _syncs(axes: Axes, plan: Plan, record: Record, done: int) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    levels = plan.topology.levels
    for level in range(levels):
        found = _planned(plan, level, done) if foreseen(plan) else _counted(record, level)
        axes.plot(
            [step / plan.steps_per_epoch for step, _ in found],
            [gap for _, gap in found],
            marker="|",
            markersize=9,
            linewidth=0.8,
            color=COLOURS[level % len(COLOURS)],
            drawstyle="steps-pre",
            label=level_name(level, levels),
        )
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("local steps between syncs")
    axes.legend()


def _planned(plan: Plan, level: int, done: int) -> list[tuple[int, int]]:
    """The steps after which `level` averaged, each with the steps since the one before."""
    steps = [step for step in sync_steps(plan, level) if step <= done]
    return [(step, step - before) for before, step in zip([0, *steps], steps, strict=False)]


def _counted(record: Record, level: int) -> list[tuple[int, float]]:
    """The steps of evaluations, each with the steps for a sync since the one before."""
    seen = [(0, 0), *((row["step"], row["syncs"][level]) for row in record.rows)]
    return [
        (step, (step - start) / (count - before))
        for (start, before), (step, count) in pairwise(seen)
        if count > before
    ]
