"""A sweep as a picture: the metric at the end against a setting, with bands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localsgd.basics.units import plural
from localsgd.results import grouping
from localsgd.results.grouping import Group, is_diverged
from localsgd.results.labels import plain
from localsgd.show.canvas import canvas, look, plain_log_axis, up_to_100
from localsgd.train.data.metric import ACCURACY, Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATIO = 8.0
"""Largest over smallest value above which an axis is logarithmic."""


def sweep(groups: Sequence[Group], names: Sequence[str], path: Path) -> None:
    """Draws the metric of the averaged model at the end against the first setting with numbers.

    A line for each choice of the other settings, with a band of one sample standard deviation over
    the seeds, and a point for each seed. Configurations with a run that has diverged are left out,
    and counted in the title.
    """
    metric = grouping.metric(groups)
    across = _across(groups, names)
    others = [name for name in names if name != across]
    lines: dict[str, list[Group]] = {}
    whole = [group for group in groups if not any(is_diverged(r.last) for r in group.records)]
    for group in whole:
        label = ", ".join(f"{name} {plain(getattr(group.run, name))}" for name in others)
        lines.setdefault(label, []).append(group)
    places = _places(whole, across)
    with canvas(path, 6.0, 4.2) as figure:
        axes = figure.subplots()
        for index, (label, members) in enumerate(lines.items()):
            _line(
                axes,
                members,
                [places[_key(group, across)] for group in members],
                metric,
                index,
                label,
            )
        _x_axis(axes, whole, across, places)
        if metric is ACCURACY:
            up_to_100(axes)
        else:
            plain_log_axis(axes)
        axes.set_ylabel(f"{metric.axis} of the averaged model")
        left_out = len(groups) - len(whole)
        figure.suptitle(_title(groups, left_out), fontsize=11)
        if others:
            figure.legend(loc="outside lower center", ncols=min(len(lines), 3))


def _title(groups: Sequence[Group], left_out: int) -> str:
    run = groups[0].run
    seeds = max(len(group.records) for group in groups)
    lost = f"; {left_out} diverged" if left_out else ""
    return f"{run.task}, {run.model}: mean ± deviation of {plural(seeds, 'seed')}{lost}"


def _across(groups: Sequence[Group], names: Sequence[str]) -> str:
    """The first setting whose values are all numbers, else the first one."""
    for name in names:
        if all(_number(getattr(group.run, name)) is not None for group in groups):
            return name
    return names[0]


def _number(value: Any) -> float | None:
    """A setting as a number; numbers by level count if there is one level."""
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None


def _key(group: Group, across: str) -> str:
    return plain(getattr(group.run, across))


def _places(groups: Sequence[Group], across: str) -> dict[str, float]:
    """Where values stand on the axis: numbers at their value, others in order."""
    values = {_key(group, across): _number(getattr(group.run, across)) for group in groups}
    if all(value is not None for value in values.values()):
        return {key: float(value or 0.0) for key, value in values.items()}
    return {key: float(index) for index, key in enumerate(values)}


def _x_axis(axes: Axes, groups: Sequence[Group], across: str, places: dict[str, float]) -> None:
    from matplotlib.ticker import NullLocator

    values = list(places.values())
    numeric = all(_number(getattr(group.run, across)) is not None for group in groups)
    if numeric and values and min(values) > 0 and max(values) / min(values) >= RATIO:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(values, list(places))
    axes.set_xlabel(across)


def _line(
    axes: Axes, members: list[Group], x: list[float], metric: Metric, index: int, label: str
) -> None:
    order = sorted(range(len(members)), key=x.__getitem__)
    style = look(index)
    found = [members[place].spread(lambda last: last[metric.key]) for place in order]
    across = [x[place] for place in order]
    means = [metric.scale * spread.mean for spread in found if spread]
    spreads = [metric.scale * (spread.deviation or 0.0) for spread in found if spread]
    axes.plot(across, means, label=label, **style)
    low = [mean - part for mean, part in zip(means, spreads, strict=True)]
    high = [mean + part for mean, part in zip(means, spreads, strict=True)]
    axes.fill_between(across, low, high, color=style["color"], alpha=0.18, linewidth=0)
    for place in order:
        values = [metric.scale * record.last[metric.key] for record in members[place].records]
        axes.plot(
            [x[place]] * len(values), values, ".", color=style["color"], alpha=0.5, markersize=3
        )
