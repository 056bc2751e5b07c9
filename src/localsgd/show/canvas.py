"""What all pictures share: a canvas without a display, colours, marks, axes in people's units.

matplotlib is imported when a picture is made, and no window system is ever asked for.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localsgd.basics.units import size
from localsgd.errors import UserError
from localsgd.landscape.figures.style import COLOURS, save
from localsgd.train.data.metric import ACCURACY, Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
"""File name endings of pictures."""
DASHES = ("-", "--", ":")
MARKS = "os^Dv"
TICKS = (90, 99, 50, 99.9, 95, 80, 98, 70, 97, 20, 60, 85, 96, 0, 99.5, 92, 40, 94, 98.5, 99.8)
"""Accuracies in % for labels of an axis, the most important first."""
LEAST_ERROR = 1e-4
"""Share of wrong answers below which a scale of errors ends."""
ROOM = 0.07
"""Fraction of an axis that a label needs."""

_STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "savefig.dpi": 150,
}


def look(index: int) -> dict[str, Any]:
    """Colour, dashes and marks of a curve by its index; 105 curves are all different."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
        "marker": MARKS[index % len(MARKS)],
    }


def check_picture(path: Path) -> None:
    """Raises, before any work, if a picture's file name has no known ending."""
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"--figure {path} is no picture's name; let it end in {', '.join(SUFFIXES[:-1])} or "
            f"{SUFFIXES[-1]}"
        )


@contextmanager
def canvas(path: Path, width: float, height: float) -> Generator[Figure]:
    """A figure of the given size in inches, written to `path` at the end."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        save(figure, path)


def plain_log_axis(axes: Axes) -> None:
    """A logarithmic y axis labelled 0.01, 0.1, 1."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    subs = (1.0,) if high / low > 30 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def bytes_axis(axes: Axes) -> None:
    """A logarithmic axis of bytes, with at most about five labels."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(_bytes_locator(axes))
    axes.xaxis.set_minor_locator(LogLocator(subs="all", numticks=100))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _round_size(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _bytes_locator(axes: Axes) -> Any:
    from math import log10

    from matplotlib.ticker import LogLocator

    low, high = axes.get_xlim()
    decades = log10(high / low) if low > 0 else 1.0
    subs = (1.0, 2.0, 5.0) if decades < 1.7 else (1.0, 3.0) if decades < 2.5 else (1.0,)
    return LogLocator(subs=subs, numticks=12)


def _round_size(number: float) -> str:
    return size(number).replace(".0 ", " ")


def quality_axis(axes: Axes, metric: Metric, values: Sequence[float]) -> None:
    """The y axis for `values` of `metric`, drawn times its scale: curves and edges of bands."""
    if metric is ACCURACY:
        accuracy_axis(axes, max(0.0, min(values)), min(1.0, max(values)))
    else:
        plain_log_axis(axes)


def up_to_100(axes: Axes) -> None:
    """Ends a y axis of accuracies in % at 0 and 100, where bands may go beyond."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low), min(100.0, high))


def accuracy_axis(axes: Axes, low: float, high: float) -> None:
    """Accuracies in % on a logarithmic scale of the error, so that 98 and 99 % lie apart.

    The scale has no place for 100 %; with values there the axis is a plain one.

    Args:
        axes: get it as y.
        low: the least accuracy, a share of 1.
        high: the highest.
    """
    import numpy as np

    if high > 1 - LEAST_ERROR:
        up_to_100(axes)
        return
    least = (1 - high) * 0.7
    axes.set_yscale(
        "function",
        functions=(
            lambda percent: -np.log10(np.maximum(least / 10, 1 - np.asarray(percent) / 100)),
            lambda height: 100 * (1 - 10.0 ** -np.asarray(height)),
        ),
    )
    top, bottom = 100 * (1 - least), 100 * (1 - min(1.0, max(3 * least, (1 - low) * 1.15)))
    axes.set_ylim(bottom, top)
    axes.set_yticks(_accuracy_ticks(bottom, top))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_locator(_no_ticks())


def _accuracy_ticks(low: float, high: float) -> list[float]:
    """Round numbers, the roundest first, as far as their labels have room."""

    def height(percent: float) -> float:
        return -math.log10(1 - percent / 100)

    room = ROOM * (height(high) - height(low))
    kept: list[float] = []
    for tick in TICKS:
        if low <= tick <= high and all(abs(height(tick) - height(t)) >= room for t in kept):
            kept.append(tick)
    if len(kept) >= 2:
        return sorted(kept)
    return [round(low + (high - low) * part, 2) for part in (0.1, 0.5, 0.9)]


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()
