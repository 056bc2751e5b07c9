"""The two figures and the maps, drawn from tables of times. A band is the range over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from experiments.convex.tables import (
    Table,
    batches,
    cell,
    fastest,
    local_steps_of,
    relative,
    worker_counts,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Lines: TypeAlias = Mapping[str, Mapping[int, np.ndarray]]
"""Times by label, then by B, [s]."""


def time_figure(tables: Mapping[str, Table], path: Path) -> None:
    """fig:convex_time: relative time over the batch, a line for each H, a panel for each target."""
    figure, panels = _panels(len(tables))
    for axes, (name, table) in zip(panels, tables.items(), strict=True):
        shown = relative(table)
        for local_steps in local_steps_of(table):
            line = {batch: shown[cell(16, batch, local_steps)] for batch in batches(table)}
            _line(axes, line, local_steps)
        _axes(axes, "local mini-batch B", "time relative to the best", f"target {name}")
    panels[0].legend(fontsize=8)
    _save(figure, path)


def speedup_figure(tables: Mapping[str, Table], path: Path) -> None:
    """fig:convex_speedup: speed-up over one worker with H = 1, a line for each H."""
    figure, panels = _panels(len(tables))
    for axes, (name, table) in zip(panels, tables.items(), strict=True):
        base = table[cell(1, 16, 1)].mean()
        for local_steps in local_steps_of(table):
            line = {k: base / table[cell(k, 16, local_steps)] for k in worker_counts(table)}
            _line(axes, line, local_steps)
        _axes(axes, "workers K", "speed-up over K = 1, H = 1", f"target {name}")
    panels[0].legend(fontsize=8)
    _save(figure, path)


def map_figure(tables: Mapping[str, Table], path: Path) -> None:
    """Relative time over (B, H), a panel for each table; the best H of each B is dotted."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(tables), figsize=(4.6 * len(tables), 3.6), squeeze=False)
    for axes, (title, table) in zip(panels[0], tables.items(), strict=True):
        shown = {where: one.mean() for where, one in relative(table).items()}
        columns, rows = batches(table), local_steps_of(table)
        grid = np.array([[shown[cell(16, b, h)] for b in columns] for h in rows])
        image = axes.imshow(np.log2(grid), origin="lower", aspect="auto", cmap="viridis_r", vmax=5)
        axes.plot(grid.argmin(axis=0), "o", color="white", markeredgecolor="black", markersize=4)
        best = fastest(table)
        star = columns.index(best.batch), rows.index(best.local_steps)
        axes.plot(*star, "*", color="red", markersize=14, markeredgecolor="white")
        every = 1 + len(columns) // 8
        axes.set_xticks(range(0, len(columns), every), [str(b) for b in columns[::every]])
        axes.set_yticks(range(len(rows)), [str(h) for h in rows])
        axes.set(xlabel="local mini-batch B", ylabel="local steps H", title=title)
        bar = figure.colorbar(image, ax=axes, ticks=range(6))
        bar.ax.set_yticklabels(["1", "2", "4", "8", "16", "≥ 32"])
    figure.suptitle(
        "time relative to the best (red star); dots: the best H for each B", fontsize=10
    )
    _save(figure, path)


def methods_figure(panels: Mapping[str, Lines], flat: Lines, title: str, path: Path) -> None:
    """Relative time over the batch, a panel for each family of schedules.

    Args:
        panels: by the family's name, the lines of its members.
        flat: lines that every panel has for comparison.
        title: of the whole.
        path: of the image.
    """
    import matplotlib

    figure, all_axes = _panels(len(panels), width=4.4)
    for axes, (name, lines) in zip(all_axes, panels.items(), strict=True):
        for number, (label, by_batch) in enumerate(flat.items()):
            _band(axes, by_batch, label, ("black", "grey")[number % 2], "--")
        for number, (label, by_batch) in enumerate(lines.items()):
            colour = matplotlib.colormaps["plasma"](0.8 * number / max(1, len(lines) - 1))
            _band(axes, by_batch, label, colour, "-")
        _axes(axes, "local mini-batch B", "time relative to the best", name)
        axes.legend(fontsize=8)
    figure.suptitle(title, fontsize=10)
    _save(figure, path)


def _panels(count: int, width: float = 5.2) -> tuple[Any, list[Axes]]:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, count, figsize=(width * count, 4), sharey=True, squeeze=False)
    for axes in panels[0][1:]:
        axes.yaxis.set_tick_params(labelleft=True)
    return figure, list(panels[0])


def _line(axes: Axes, by_x: Mapping[int, np.ndarray], local_steps: int) -> None:
    """Mean and range over seeds, coloured by H."""
    import matplotlib

    colour = matplotlib.colormaps["viridis"](np.log2(local_steps) / 4.6)
    _band(axes, by_x, f"H = {local_steps}", colour, "-")


def _band(axes: Axes, by_x: Mapping[int, np.ndarray], label: str, colour: Any, style: str) -> None:
    x, y = list(by_x), np.stack(list(by_x.values()))
    axes.plot(x, y.mean(axis=1), style, marker="o", markersize=3, color=colour, label=label)
    axes.fill_between(x, y.min(axis=1), y.max(axis=1), color=colour, alpha=0.2, linewidth=0)


def _axes(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.title.set_fontsize(10)
    axes.grid(alpha=0.3)


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
