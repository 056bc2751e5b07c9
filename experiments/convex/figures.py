"""The two figures and the maps, drawn from tables of times. A band is the range over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.convex.designs import LOCAL_STEPS, POWERS
from experiments.convex.tables import Table, cell, fastest, relative

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {"true": "target f* + 0.005", "paper": "target: the paper's f* + 0.005"}


def time_figure(tables: Mapping[str, Table], path: Path) -> None:
    """fig:convex_time: relative time over the batch, a line for each H, a panel for each target."""
    figure, panels = _panels(len(tables))
    for axes, (name, table) in zip(panels, tables.items(), strict=True):
        shown = relative(table)
        for local_steps in LOCAL_STEPS:
            lines = [shown[cell(16, batch, local_steps)] for batch in POWERS]
            _line(axes, POWERS, np.stack(lines), f"H = {local_steps}", local_steps)
        _axes(axes, "local mini-batch B", "time relative to the best", TITLES[name])
        axes.set_yscale("log", base=2)
    _save(figure, panels[0], path)


def speedup_figure(tables: Mapping[str, Table], path: Path) -> None:
    """fig:convex_speedup: speed-up over one worker with H = 1, a line for each H."""
    figure, panels = _panels(len(tables))
    for axes, (name, table) in zip(panels, tables.items(), strict=True):
        base = table[cell(1, 16, 1)].mean()
        for local_steps in LOCAL_STEPS:
            lines = [base / table[cell(workers, 16, local_steps)] for workers in POWERS]
            _line(axes, POWERS, np.stack(lines), f"H = {local_steps}", local_steps)
        _axes(axes, "workers K", "speed-up over K = 1, H = 1", TITLES[name])
        axes.set_yscale("log", base=2)
    _save(figure, panels[0], path)


def map_figure(tables: Mapping[str, Table], local_steps: Sequence[int], path: Path) -> None:
    """Relative time over (B, H), a panel for each table; the best H of each B is dotted."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(tables), figsize=(4.6 * len(tables), 3.6), squeeze=False)
    for axes, (title, table) in zip(panels[0], tables.items(), strict=True):
        shown = {where: one.mean() for where, one in relative(table).items()}
        grid = np.array([[shown[cell(16, b, h)] for b in POWERS] for h in local_steps])
        image = axes.imshow(np.log2(grid), origin="lower", aspect="auto", cmap="viridis_r", vmax=5)
        axes.plot(grid.argmin(axis=0), "o", color="white", markeredgecolor="black", markersize=4)
        best = fastest(table)
        row, column = local_steps.index(int(best.method[6:-1])), POWERS.index(best.batch)
        axes.plot(column, row, "*", color="red", markersize=14, markeredgecolor="white")
        axes.set_xticks(range(0, len(POWERS), 2), [str(b) for b in POWERS[::2]])
        axes.set_yticks(range(len(local_steps)), [str(h) for h in local_steps])
        axes.set(xlabel="local mini-batch B", ylabel="local steps H", title=title)
        bar = figure.colorbar(image, ax=axes, ticks=range(6))
        bar.ax.set_yticklabels(["1", "2", "4", "8", "16", "≥ 32"])
    figure.suptitle(
        "time relative to the best (red star); dots: the best H for each B", fontsize=10
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def methods_figure(lines: Mapping[str, Mapping[int, np.ndarray]], title: str, path: Path) -> None:
    """Time over the batch, a line for each method: by label, then by B, [s]."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.6))
    styles = ("-", "--", ":", "-.")
    for number, (label, by_batch) in enumerate(lines.items()):
        batches = sorted(by_batch)
        values = np.stack([by_batch[batch] for batch in batches])
        colour = f"C{number % 10}"
        style = styles[number // 4 % 4]
        axes.plot(
            batches, values.mean(axis=1), style, marker="o", markersize=3, color=colour, label=label
        )
        axes.fill_between(batches, values.min(axis=1), values.max(axis=1), color=colour, alpha=0.15)
    _axes(axes, "local mini-batch B", "time in gradients", title)
    axes.set_yscale("log", base=2)
    axes.legend(fontsize=8, bbox_to_anchor=(1.02, 1), loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panels(count: int) -> tuple[Any, list[Axes]]:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, count, figsize=(5.2 * count, 4), sharey=True, squeeze=False)
    return figure, list(panels[0])


def _line(axes: Axes, x: Sequence[int], y: np.ndarray, label: str, local_steps: int) -> None:
    """Mean and range of y [len(x), s]."""
    import matplotlib

    colour = matplotlib.colormaps["viridis"](np.log2(local_steps) / 4.6)
    axes.plot(x, y.mean(axis=1), marker="o", markersize=3, color=colour, label=label)
    axes.fill_between(x, y.min(axis=1), y.max(axis=1), color=colour, alpha=0.25, linewidth=0)


def _axes(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.title.set_fontsize(10)
    axes.grid(alpha=0.3)


def _save(figure: Any, first: Axes, path: Path) -> None:
    import matplotlib.pyplot as plt

    first.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
