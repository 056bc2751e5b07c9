"""Pictures of arms, from their records alone: a line is the mean over seeds, a band their range.

A band about differences is the 95 % interval of their mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.arms import Arm, found, jobs_of, values
from experiments.study import Job, Picture, Records
from localsgd.basics.paired import paired
from localsgd.landscape.figures.style import COLOURS, DASHES, legend, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEST, TRAIN = 1, 2
"""Columns of a record's curve beside the epoch: the test metric, the training loss."""
AXES = {TEST: "test accuracy (%)", TRAIN: "training loss"}


def learning_curves(
    name: str,
    title: str,
    records: Records,
    arms: Sequence[Arm],
    *,
    against: Callable[[Arm, np.ndarray], np.ndarray] | None = None,
    x_label: str = "epoch",
    test: str = AXES[TEST],
    names: Sequence[str] = (),
    minus: tuple[Arm, float] | None = None,
) -> Picture:
    """Training loss and test metric of some arms, over epochs or what `against` makes of them.

    Args:
        name, title: of the picture.
        records, arms: what is drawn.
        against: what stands in the place of an arm's epochs.
        x_label, test: of the axes.
        names: of the arms, if not their own.
        minus: an arm, and the epoch from which a third panel shows how far the others lie above it,
            paired by seed, where they are too close to be told apart in the second.
    """

    def draw() -> Figure:
        figure, every = panels(2 if minus is None else 3)
        labels = [*(names or (one.name for one in arms))]
        for axes, column in zip(every, (TRAIN, TEST), strict=False):
            for index, one in enumerate(arms):
                _curve(axes, records, one, column, index, against, labels[index])
            axes.set(xlabel=x_label, ylabel=test if column == TEST else AXES[TRAIN])
        every[0].set_yscale("log")
        legend(every[1])
        if minus is not None:
            base, start = minus
            for index, one in enumerate(arms):
                _difference(every[2], records, one, base, index, start)
            every[2].axhline(0.0, color=COLOURS[arms.index(base)], lw=1.2)
            above = f"test accuracy minus {labels[arms.index(base)]}\n(points, 95 % interval)"
            every[2].set(xlabel=x_label, ylabel=above)
        return figure

    return Picture(name, title, draw, jobs_of(arms))


def _curve(
    axes: Axes,
    records: Records,
    one: Arm,
    column: int,
    index: int,
    against: Callable[[Arm, np.ndarray], np.ndarray] | None,
    label: str,
) -> None:
    curves = [record["curve"] for record in found(records, one).values()]
    if not curves:
        return
    epochs = np.array([row[0] for row in curves[0]], dtype=float)
    heights = np.array([[row[column] for row in curve] for curve in curves], dtype=float)
    if column == TEST and "test_accuracy" in next(iter(found(records, one).values())):
        heights *= 100
    x = epochs if against is None else against(one, epochs)
    colour, dash = COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]
    axes.plot(x, heights.mean(axis=0), color=colour, ls=dash, lw=1.2, label=label)
    axes.fill_between(x, heights.min(axis=0), heights.max(axis=0), color=colour, alpha=0.15, lw=0)


def _difference(
    axes: Axes, records: Records, one: Arm, base: Arm, index: int, start: float
) -> None:
    """The mean over seeds of an arm's test accuracy minus another's, with its 95 % t-interval."""
    first, second = found(records, one), found(records, base)
    seeds = [seed for seed in first if seed in second]
    if one is base or not seeds:
        return
    curves = [[first[seed]["curve"], second[seed]["curve"]] for seed in seeds]
    pairs = zip(*(zip(*pair, strict=True) for pair in curves), strict=True)
    rows = [(pair[0][0][0], [100 * (a[TEST] - b[TEST]) for a, b in pair]) for pair in pairs]
    rows = [(epoch, differences) for epoch, differences in rows if epoch >= start]
    intervals = [paired(differences) for _, differences in rows]
    epochs = [epoch for epoch, _ in rows]
    colour = COLOURS[index % len(COLOURS)]
    axes.plot(epochs, [one.mean for one in intervals], color=colour, lw=1.2, marker="o", ms=3)
    low, high = ([getattr(one, end) for one in intervals] for end in ("low", "high"))
    axes.fill_between(epochs, low, high, color=colour, alpha=0.15, lw=0)


def boxes(
    name: str,
    title: str,
    records: Records,
    groups: Mapping[str, Mapping[int, Arm]],
    *,
    x_label: str,
) -> Picture:
    """A box of test accuracies for each arm, a group beside the other, by H, K or the like."""

    def draw() -> Figure:
        figure, (axes,) = panels()
        places = sorted({place for group in groups.values() for place in group})
        width = 0.8 / max(1, len(groups))
        for index, (label, group) in enumerate(groups.items()):
            shift = (index - (len(groups) - 1) / 2) * width
            for place, one in group.items():
                kept = list(values(records, one, "test_accuracy").values())
                if kept:
                    _box(axes, kept, places.index(place) + shift, width, COLOURS[index])
            axes.plot([], [], color=COLOURS[index], label=label)
        axes.set_xticks(range(len(places)), map(str, places))
        axes.set(xlabel=x_label, ylabel=AXES[TEST])
        legend(axes)
        return figure

    jobs = [job for group in groups.values() for job in jobs_of([*group.values()])]
    return Picture(name, title, draw, jobs)


def _box(axes: Axes, kept: Sequence[float], place: float, width: float, colour: str) -> None:
    style = {"color": colour}
    axes.boxplot(
        [kept],
        positions=[place],
        widths=0.8 * width,
        manage_ticks=False,
        boxprops=style,
        whiskerprops=style,
        capprops=style,
        medianprops=style,
        flierprops={"markeredgecolor": colour, "markersize": 3},
    )


def _doublings(axes: Axes, places: Sequence[float]) -> None:
    """A scale on which doublings are alike, with the places themselves under it."""
    axes.set_xscale("log", base=2)
    marks = sorted(set(places))
    axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
    axes.minorticks_off()


def lines(
    name: str,
    title: str,
    groups: Mapping[str, Mapping[Any, Sequence[float]]],
    jobs: Sequence[Job],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = True,
    log_y: bool = False,
) -> Picture:
    """A line for each group: the mean of some numbers at every place, and their range."""

    def draw() -> Figure:
        figure, (axes,) = panels()
        for index, (label, group) in enumerate(groups.items()):
            known = {place: kept for place, kept in sorted(group.items()) if kept}
            if not known:
                continue
            colour = COLOURS[index % len(COLOURS)]
            means = [statistics.fmean(kept) for kept in known.values()]
            axes.plot(list(known), means, "o-", ms=3, lw=1.2, color=colour, label=label)
            low, high = ([f(kept) for kept in known.values()] for f in (min, max))
            axes.fill_between(list(known), low, high, color=colour, alpha=0.15, lw=0)
        if log_x:
            _doublings(axes, [place for group in groups.values() for place in group])
        if log_y:
            axes.set_yscale("log")
        axes.set(xlabel=x_label, ylabel=y_label)
        legend(axes)
        return figure

    return Picture(name, title, draw, jobs)
