"""Figures over two directions: surfaces around a model, and the plane through three models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from localsgd.landscape.figures.style import panels, with_default

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]
OFFSETS = ((6, -12), (6, -12), (6, 4))


def surfaces(records: list[Record]) -> Figure:
    """Contours of the loss on a logarithmic scale, a panel a model and data set."""
    figure, all_axes = panels(len(records))
    for record, axes in zip(records, all_axes, strict=True):
        _contours(figure, axes, record)
        axes.plot(0, 0, marker="+", color="black")
        axes.set(xlabel="first direction", ylabel="second direction", title=_title(record))
    return figure


def planes(records: list[Record]) -> Figure:
    """The same over the plane through three models, which are marked and named."""
    figure, all_axes = panels(len(records))
    for record, axes in zip(records, all_axes, strict=True):
        _contours(figure, axes, record)
        names = record.get("models") or ("1", "2", "3")
        for name, point, offset in zip(names, record["points"], OFFSETS, strict=True):
            axes.plot(*point, marker="o", color="black", markersize=4)
            box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1}
            axes.annotate(
                name, point, xytext=offset, textcoords="offset points", fontsize=8, bbox=box
            )
        axes.set(xlabel="distance in weight space", ylabel="distance", title=_title(record))
    return figure


def _contours(figure: Figure, axes: Any, record: Record) -> None:
    import numpy as np
    from matplotlib.colors import LogNorm

    losses = np.array([with_default(row) for row in record["loss"]])
    if not np.isfinite(losses).any():
        axes.text(0.5, 0.5, "no finite loss", ha="center", va="center", transform=axes.transAxes)
        return
    low, high = float(np.nanmin(losses)), float(np.nanmax(losses))
    even = not 0 < low < high
    levels = np.linspace(low, max(high, low + 1e-12), 15) if even else np.geomspace(low, high, 15)
    drawn = axes.contourf(
        record["first"],
        record["second"],
        losses,
        levels=levels,
        norm=None if even else LogNorm(low, high),
        cmap="viridis",
    )
    bar = figure.colorbar(drawn, ax=axes, format="%.3g")
    bar.set_label("loss")
    bar.set_ticks(levels[::2].tolist())
    bar.minorticks_off()
    axes.grid(visible=False)


def _title(record: Record) -> str:
    return ", ".join(record[key] for key in ("model", "data") if record.get(key))
