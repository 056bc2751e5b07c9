"""Several runs in one picture: test accuracy against epochs and against bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localsgd.record import Folder
from localsgd.show import gather
from localsgd.show.gather import Group, Point
from localsgd.show.paper import accuracy_axis, bytes_axis, canvas, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = 12
"""Marks on a curve, at most."""

Across = Callable[[Point], float]


def comparison(folders: Sequence[Folder], path: Path) -> None:
    """Draws a curve for each method, with a band of one standard deviation for several seeds.

    The panels share the accuracy; to the right it is drawn against the bytes a worker has handed
    over, measured, at all levels together, and where a run has several, at the outermost alone.
    """
    groups = [group for group in gather.groups(folders) if group.curve]
    panels = [("epochs", lambda point: point.epoch), ("bytes sent per worker", _all_bytes)]
    if any(group.levels > 1 for group in groups):
        panels.append(("bytes sent per worker, outermost level", lambda point: point.bytes[-1]))
    rows = -(-len(groups) // 3)
    with canvas(path, 1.0 + 4.0 * len(panels), 3.8 + 0.22 * rows) as figure:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for panel, (title, across) in zip(axes, panels, strict=True):
            for index, group in enumerate(groups):
                _curve(panel, group, across, index)
            panel.set_xlabel(title)
            if across is not panels[0][1]:
                bytes_axis(panel)
        axes[0].set_ylabel("test accuracy of the agreed model (%)")
        if groups:
            accuracies = [point.accuracy.mean for group in groups for point in group.curve]
            accuracy_axis(axes[0], min(accuracies), max(accuracies))
            handles, labels = axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=3)


def _all_bytes(point: Point) -> float:
    return sum(point.bytes)


def _curve(axes: Axes, group: Group, across: Across, index: int) -> None:
    points = [point for point in group.curve if across(point) > 0]
    x = [across(point) for point in points]
    mean = [100 * point.accuracy.mean for point in points]
    style = look(index)
    seeds = f" ({len(group.records)} runs)" if len(group.records) > 1 else ""
    axes.plot(
        x, mean, label=group.title + seeds, markevery=max(1, len(x) // MARKS), alpha=0.9, **style
    )
    if any(point.accuracy.deviation is not None for point in points):
        spread = [100 * (point.accuracy.deviation or 0.0) for point in points]
        low = [value - part for value, part in zip(mean, spread, strict=True)]
        high = [value + part for value, part in zip(mean, spread, strict=True)]
        axes.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)
