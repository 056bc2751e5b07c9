"""What all figures share: a canvas without global state, colours by model, saving whole files.

matplotlib is imported when a figure is drawn, never before.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localsgd.basics.files import open_anew
from localsgd.basics.printable import printable
from localsgd.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers and in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
PANEL = (4.8, 3.4)


def panels(count: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels in a row."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(
            "figures need matplotlib, which is not installed; pip install 'localsgd[cli]'"
        ) from error
    figure = Figure(figsize=(PANEL[0] * count, PANEL[1]), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(alpha=0.25, linewidth=0.5)
    return figure, list(axes)


def save(figure: Figure, path: Path) -> Path:
    """Save in the format of the path's ending; the file appears whole."""
    _show_as_written(figure)
    beside = path.with_name(f".{path.name}")
    try:
        with open_anew(beside) as file:
            figure.savefig(file, dpi=150, format=path.suffix.lstrip("."))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def _show_as_written(figure: Figure) -> None:
    """Makes text of what would be read as a formula: a name in a run's folder may have a `$`.

    Labels of ticks stay as they are, since logarithmic axes write formulas.
    """
    from matplotlib.text import Text

    ticks = {
        text
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for text in axis.findobj(Text)
        if text is not axis.label
    }
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text not in ticks:
            text.set_parse_math(False)
            text.set_text(printable(text.get_text()))


def legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=8)


def place_of(names: Iterable[Any]) -> dict[Any, int]:
    """Each distinct name's place, in order of appearance: its colour or dash."""
    return {name: index for index, name in enumerate(dict.fromkeys(names))}


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> str:
    return DASHES[index % len(DASHES)]


def with_default(values: Iterable[float | None]) -> list[float]:
    """None (a number that wasn't finite) as nan, which is drawn as a gap."""
    return [float("nan") if value is None else value for value in values]
