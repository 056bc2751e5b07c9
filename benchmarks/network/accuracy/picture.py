"""Accuracy against seconds of training, a panel for each rate."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.network.accuracy.arms import ARMS, DDP
from benchmarks.network.accuracy.findings import title
from benchmarks.network.accuracy.outcome import WITHIN, Outcome, Trained
from benchmarks.network.accuracy.setting import Setting
from localsgd.show.canvas import canvas, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(found: Sequence[Outcome], setting: Setting, path: Path, text: str) -> None:
    """Means over seeds, with every seed's own curve behind them."""
    with canvas(path, 1.0 + 5.4 * len(found), 4.6) as figure:
        panels = figure.subplots(1, len(found), squeeze=False)[0]
        for axes, outcome in zip(panels, found, strict=True):
            _panel(axes, outcome, setting)
        figure.suptitle(text, fontsize=11)


def _panel(axes: Axes, outcome: Outcome, setting: Setting) -> None:
    for index, arm in enumerate(outcome.arms()):
        own = [run for run, _ in outcome.pairs(arm)]
        style = look(index)
        for run in own:
            axes.plot(run.seconds, run.accuracy, color=style["color"], alpha=0.25, linewidth=0.8)
        seconds, accuracy = mean_curve(own)
        sooner = "" if arm == DDP else f", {1 / outcome.times(arm).median:.2f}x sooner"
        axes.plot(seconds, accuracy, label=ARMS[arm].named(setting) + sooner, **style)
    target = statistics.mean(run.accuracy[-1] for run in outcome.runs[DDP].values()) - WITHIN
    axes.axhline(target, color="#888888", linewidth=0.8, linestyle=":")
    axes.annotate(
        f"DDP's last, less {WITHIN:g} points",
        (0, target),
        xytext=(2, 3),
        textcoords="offset points",
        fontsize=7,
        color="#666666",
    )
    axes.set_xlim(0, None)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel(f"accuracy on {setting.judged:,} test images, %")
    axes.set_title(title(outcome), fontsize=10)
    axes.legend(fontsize=7, loc="lower right")


def mean_curve(runs: Sequence[Trained]) -> tuple[list[float], list[float]]:
    """Means over runs, point by point: seconds and accuracies."""
    seconds, accuracies = (
        [statistics.mean(values) for values in zip(*curves, strict=True)]
        for curves in ([run.seconds for run in runs], [run.accuracy for run in runs])
    )
    return seconds, accuracies
