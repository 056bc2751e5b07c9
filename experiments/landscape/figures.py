"""Figures of a setting, from its records alone: a line is the mean over seeds, a band the range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.landscape.claims import Records, by_seed, chosen, rises
from experiments.landscape.design import FORKED, SETS
from experiments.landscape.measures import MINI_BATCH, POST_LOCAL, SCRATCH, SHAPES, SMALL
from localsgd.basics.units import plural
from localsgd.landscape.figures import maps
from localsgd.landscape.figures.style import COLOURS, legend, panels, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOUR = dict(zip((*FORKED, SCRATCH, SMALL), COLOURS, strict=False))


def draw_all(name: str, records: Records, folder: Path) -> list[Path]:
    """Every figure of a setting for which there are records."""
    if not records:
        return []
    drawn = []
    for what, draw in FIGURES.items():
        figure = draw(records)
        seeds = plural(len(by_seed(records)), "seed")
        figure.suptitle(f"{name}, {seeds}", fontsize=9)
        drawn.append(save(figure, folder / f"{name}-{what}.png"))
    return drawn


def largest(records: Records) -> Figure:
    """lambda_max by epoch of phase 2, the mean over seeds, a line for each H."""
    figure, all_axes = panels(2)
    for data, axes in zip(SETS, all_axes, strict=True):
        for arm in FORKED:
            x, values = _history(records, arm, data)
            axes.plot(x, values.mean(axis=0), color=COLOUR[arm], label=arm, lw=1.2)
        axes.set(xlabel="epoch", ylabel="λ max, mean over seeds", title=data)
        _scaled(axes)
        legend(axes)
    return figure


def relative(records: Records) -> Figure:
    """lambda_max over that of mini-batch SGD of the same seed and epoch."""
    figure, all_axes = panels(2)
    for data, axes in zip(SETS, all_axes, strict=True):
        _, base = _history(records, MINI_BATCH, data)
        for arm in FORKED[1:]:
            x, values = _history(records, arm, data)
            band(axes, arm, x, values / base)
        axes.axhline(1, color="grey", linewidth=0.6)
        axes.set(xlabel="epoch", ylabel="λ max over mini-batch's", title=data)
        legend(axes)
    return figure


def _history(records: Records, arm: str, data: str) -> tuple[np.ndarray, np.ndarray]:
    rows = chosen(records, "largest eigenvalue", model=arm, data=data)
    return over_seeds(rows, "epoch", "largest")


def top(records: Records) -> Figure:
    """The ten largest eigenvalues at the end, by rank."""
    figure, all_axes = panels(2)
    for data, axes in zip(SETS, all_axes, strict=True):
        for arm in COLOUR:
            rows = chosen(records, "eigenvalues", model=arm, data=data)
            values = np.array([row["values"] for row in rows])
            band(axes, arm, np.arange(1, values.shape[1] + 1), values)
        axes.set(xlabel="rank", ylabel="eigenvalue at the end", title=data)
        _scaled(axes)
        legend(axes)
    return figure


def curves(records: Records) -> Figure:
    """Rises along ten shared directions: of the first seed, each; of all seeds, as ratios."""
    figure, (train, test, ratios) = panels(3)
    first = by_seed(records)[0]
    for data, axes in zip(SETS, (train, test), strict=True):
        for arm in (POST_LOCAL, MINI_BATCH):  # the dashed ones on top
            for index, row in enumerate(chosen(first, "curve", model=arm, data=data)):
                style = "--" if arm == MINI_BATCH else "-"
                label = arm if index == 0 else None
                axes.plot(row["steps"], row["loss"], style, color=COLOUR[arm], lw=0.8, label=label)
        axes.set(xlabel="step along the direction", ylabel="loss", title=f"{data}, seed 0")
        axes.set_yscale("log")
        legend(axes)
    _ratios(ratios, records)
    return figure


def _ratios(axes: Axes, records: Records) -> None:
    """A point for each direction and seed: the rise of H = 16 over that of mini-batch SGD."""
    for place, data in enumerate(SETS):
        for seed, one in enumerate(by_seed(records)):
            points = rises(one, POST_LOCAL, data) / rises(one, MINI_BATCH, data)
            x = np.full(len(points), seed + 0.3 * place - 0.15)
            label = data if seed == 0 else None
            axes.plot(x, points, "ox"[place], ms=4, color=COLOURS[place], label=label, mfc="none")
    axes.axhline(1, color="grey", linewidth=0.6)
    count = len(by_seed(records))
    axes.set_xticks(range(count))
    axes.set_xlim(-0.5, count - 0.5)
    axes.set(xlabel="seed", ylabel="rise: H=16 / H=1", title="ten directions, near 0")
    legend(axes)


def lines(records: Records) -> Figure:
    """Loss on the line from post-local SGD (0) to mini-batch SGD (1): resumed, and from scratch."""
    figure, all_axes = panels(2)
    for start, axes in zip((POST_LOCAL, SCRATCH), all_axes, strict=True):
        rows = chosen(records, "interpolation", pair=f"{start} to {MINI_BATCH}")
        for place, data in enumerate(SETS):
            values = np.array([row["data"][data]["loss"] for row in rows], dtype=float)
            colour = COLOURS[place]
            band(
                axes,
                data,
                np.array(rows[0]["positions"]),
                values,
                colour,
                "-" if place == 0 else "--",
            )
        for end in (0, 1):
            axes.axvline(end, color="grey", linewidth=0.6)
        axes.set(xlabel=f"0: {start}, 1: mini-batch", ylabel="loss")
        _scaled(axes)
        legend(axes)
    return figure


def noise(records: Records) -> Figure:
    """The centred trace of per-sample gradients, and the noise of a step, along training."""
    figure, (traces, steps) = panels(2)
    for arm in (MINI_BATCH, POST_LOCAL, SMALL):
        rows = chosen(records, "step noise", model=arm)
        band(traces, arm, *over_seeds(rows, "epoch", "centred"))
        band(steps, f"{arm}, averaged", *over_seeds(rows, "epoch", "averaged"), COLOUR[arm], "--")
        if arm == POST_LOCAL:
            band(steps, f"{arm}, one worker", *over_seeds(rows, "epoch", "worker"), COLOUR[arm])
    traces.set(xlabel="epoch", ylabel="tr Cov of a sample's gradient")
    steps.set(xlabel="epoch", ylabel="trace of the noise of a step")
    for axes in (traces, steps):
        _scaled(axes)
        legend(axes)
    return figure


def drift(records: Records) -> Figure:
    """Distances and cosines of the workers of H = 16, round by round."""
    figure, (distances, cosines) = panels(2)
    rows = chosen(records, "drift")
    for key, label, index in (
        ("to_mean", "worker to mean", 0),
        ("updates", "update of a worker", 1),
    ):
        flat = [{**row, key: row[key][0]} for row in rows]
        band(distances, label, *over_seeds(flat, "step", key), COLOURS[index])
    band(distances, "mean update", *over_seeds(rows, "step", "mean_update"), COLOURS[2])
    for key, label, index in (
        ("cosine", "between workers", 0),
        ("between_rounds", "between rounds", 1),
    ):
        band(cosines, label, *over_seeds(rows, "step", key), COLOURS[index])
    distances.set(xlabel="local steps", ylabel="distance in weight space", yscale="log")
    cosines.set(xlabel="local steps", ylabel="cosine of updates")
    for axes in (distances, cosines):
        legend(axes)
    return figure


def plane(records: Records) -> Figure:
    """The plane through the three minima of the first seed."""
    return maps.planes(chosen(records, "plane"))


def _scaled(axes: Axes) -> None:
    """A logarithmic scale where values span more than a few times their least."""
    low, high = axes.dataLim.y0, axes.dataLim.y1
    if high > 5 * low > 0:
        axes.set_yscale("log")


def over_seeds(
    rows: Sequence[dict[str, Any]], along: str, key: str
) -> tuple[np.ndarray, np.ndarray]:
    """Places, and values [seeds, places]; what was not measured is nan."""
    places = sorted({row[along] for row in rows})
    seeds = sorted({row["seed"] for row in rows})
    values = np.full((len(seeds), len(places)), np.nan)
    for row in rows:
        value = row[key]
        values[seeds.index(row["seed"]), places.index(row[along])] = (
            np.nan if value is None else value
        )
    return np.array(places), values


def band(
    axes: Axes,
    label: str,
    x: np.ndarray,
    values: np.ndarray,
    colour: str | None = None,
    style: str = "-",
) -> None:
    """A line of the mean over seeds of values [seeds, places], with a band of their range."""
    colour = colour or COLOUR[label]
    known = ~np.isnan(values).all(axis=0)
    x, values = x[known], values[:, known]
    axes.plot(x, np.nanmean(values, axis=0), style, color=colour, label=label, lw=1.2)
    axes.fill_between(
        x, np.nanmin(values, axis=0), np.nanmax(values, axis=0), color=colour, alpha=0.12, lw=0
    )


FIGURES: dict[str, Callable[[Records], Figure]] = {
    "largest": largest,
    "relative": relative,
    "top": top,
    "curves": curves,
    "lines": lines,
    "noise": noise,
    "drift": drift,
    "plane": plane,
}

assert set(SHAPES) <= set(COLOUR)
