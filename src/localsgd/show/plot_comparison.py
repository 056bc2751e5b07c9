"""Several runs in one picture: test accuracy or perplexity against epochs and against bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localsgd.basics.units import plural
from localsgd.results import grouping
from localsgd.results.grouping import Group, Point
from localsgd.show.canvas import bytes_axis, canvas, look, quality_axis
from localsgd.train.data.metric import Metric
from localsgd.train.engine.run_folder import Folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = 12
"""Most marks on a curve."""

Across = Callable[[Point], float]


def comparison(folders: Sequence[Folder], path: Path) -> None:
    """Draws a curve for each method, with a band of one standard deviation for several seeds.

    The panels share the metric. On the right it is drawn against the measured bytes that a worker
    has sent, at all levels together and, if a run has several, at the outermost alone.
    """
    groups = [group for group in grouping.groups(folders) if group.curve]
    panels = [("epochs", lambda point: point.epoch), ("bytes sent per member", _all_bytes)]
    if any(group.levels > 1 for group in groups):
        panels.append(("bytes sent per member, outermost level", lambda point: point.bytes[-1]))
    metric = grouping.metric(groups)
    width = 1.0 + 4.0 * len(panels)
    columns = _legend_columns(groups, width)
    with canvas(path, width, 4.0 + 0.22 * -(-len(groups) // columns)) as figure:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for panel, (title, across) in zip(axes, panels, strict=True):
            for index, group in enumerate(groups):
                _curve(panel, group, metric, across, index, 1 - index / len(groups))
            panel.set_xlabel(title)
            if across is not panels[0][1]:
                bytes_axis(panel)
        figure.suptitle(_title(groups), fontsize=11)
        axes[0].set_ylabel(f"{metric.axis} of the averaged model")
        if groups:
            spreads = [point.quality for group in groups for point in group.curve]
            edges = [(spread.deviation or 0.0, spread.mean) for spread in spreads]
            values = [mean + sign * part for part, mean in edges for sign in (-1, 1)]
            quality_axis(axes[0], metric, values)
            handles, labels = axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _title(groups: Sequence[Group]) -> str:
    """The settings that all runs share."""
    named = [
        (f"{group.run.task}", f"{group.run.model}", plural(group.run.workers or 1, "worker"))
        for group in groups
    ]
    return ", ".join(values[0] for values in zip(*named, strict=True) if len(set(values)) == 1)


def _legend_columns(groups: Sequence[Group], width: float) -> int:
    """The number of columns that fit into `width` inches, each as wide as the longest name."""
    longest = max((len(_name(group)) for group in groups), default=1)
    return max(1, min(len(groups), int(width / (0.08 * longest + 0.6))))


def _name(group: Group) -> str:
    count = len(group.drawn)
    return group.title + (f" ({count} runs)" if count > 1 else "")


def _all_bytes(point: Point) -> float:
    return sum(point.bytes)


def _curve(
    axes: Axes, group: Group, metric: Metric, across: Across, index: int, above: float
) -> None:
    """`above`, from 1 down to 0, makes lines wider that lie below others, so that both are seen."""
    points = [point for point in group.curve if across(point) > 0]
    x = [across(point) for point in points]
    mean = [metric.scale * point.quality.mean for point in points]
    style = look(index)
    axes.plot(
        x,
        mean,
        label=_name(group),
        markevery=max(1, len(x) // MARKS),
        linewidth=1.2 + 1.6 * above,
        markersize=3.5 + 2.5 * above,
        **style,
    )
    if any(point.quality.deviation is not None for point in points):
        spread = [metric.scale * (point.quality.deviation or 0.0) for point in points]
        low = [value - part for value, part in zip(mean, spread, strict=True)]
        high = [value + part for value, part in zip(mean, spread, strict=True)]
        axes.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)
