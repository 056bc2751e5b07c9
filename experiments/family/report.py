"""The table and the picture of all methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments.family.design import ARMS, TABLE_OF_MOMENTA
from experiments.family.runner import Kept
from experiments.markdown import table
from localsgd.basics.paired import paired

REFERENCE = "mini-batch SGD"


@dataclass(frozen=True)
class Line:
    """One method over its seeds.

    Args:
        accuracies: in per cent, by seed.
        against: accuracy minus the reference's of the same seed, by seed.
        syncs: of the outermost level.
        bytes: that a worker hands over in the whole run, at all levels.
    """

    arm: str
    accuracies: tuple[float, ...]
    against: tuple[float, ...]
    syncs: float
    bytes: float

    @property
    def deviation(self) -> float:
        return stdev(self.accuracies) if len(self.accuracies) > 1 else math.nan

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval of the mean paired difference (Student's t)."""
        interval = paired(self.against)
        return interval.high - interval.mean


def lines(rows: Sequence[dict[str, Any]], arms: Iterable[str]) -> list[Line]:
    by_arm = {
        arm: {row["settings"]["seed"]: row for row in rows if row["arm"] == arm}
        for arm in [REFERENCE, *arms]
    }
    reference = by_arm[REFERENCE]
    found = []
    for arm, runs in by_arm.items():
        if not runs:
            continue
        found.append(
            Line(
                arm,
                tuple(100 * row["test_accuracy"] for row in runs.values()),
                tuple(
                    100 * (row["test_accuracy"] - reference[seed]["test_accuracy"])
                    for seed, row in runs.items()
                    if seed in reference
                ),
                mean(row["syncs"][-1] for row in runs.values()),
                mean(sum(row["bytes"]) for row in runs.values()),
            )
        )
    return found


def write(kept: Kept, folder: Path) -> None:
    """`table.md` and `table.png` of all methods, `momenta.md` of the paper's table of momenta."""
    found = lines(kept.rows, ARMS)
    (folder / "table.md").write_text(markdown(found))
    (folder / "momenta.md").write_text(markdown(lines(kept.rows, TABLE_OF_MOMENTA)))
    _draw(found, folder / "table.png")


def markdown(found: Sequence[Line]) -> str:
    headings = [
        "method", "test accuracy (%)", "less mini-batch SGD, paired", "syncs", "a worker sent"
    ]  # fmt: skip
    rows = []
    for line in found:
        known = line.against and line.arm != REFERENCE
        against = f"{mean(line.against):+.2f} ± {line.half_width:.2f}" if known else ""
        accuracy = f"{mean(line.accuracies):.2f} ± {line.deviation:.2f}"
        sent = f"{line.bytes / 1e6:.2f} MB"
        rows.append([line.arm, accuracy, against, f"{line.syncs:.0f}", sent])
    counts = sorted({len(line.accuracies) for line in found})
    seeds = " to ".join(str(count) for count in (counts[0], counts[-1])[: len(counts)])
    note = (
        f"Mean ± deviation over {seeds} seeds; the difference with its 95 % interval (Student's t, "
        "same seed for both)."
    )
    return f"{table(headings, rows, numbers=range(1, 5))}\n\n{note}\n"


def _draw(found: Sequence[Line], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.27 * len(found) + 1.2), layout="constrained")
    for index, line in enumerate(reversed(found)):
        x = mean(line.accuracies)
        axes.scatter(line.accuracies, [index] * len(line.accuracies), s=14, color="#9aa5b1")
        axes.scatter([x], [index], s=34, color="#1f6f8b", zorder=3)
    reference = next((line for line in found if line.arm == REFERENCE), None)
    if reference is not None:
        axes.axvline(mean(reference.accuracies), color="#c8553d", linewidth=1, zorder=0)
        axes.text(
            mean(reference.accuracies),
            len(found) - 0.3,
            "mini-batch SGD",
            color="#c8553d",
            ha="right",
            va="bottom",
            fontsize=8,
        )
    labels = [f"{line.arm}  ({line.bytes / 1e6:.1f} MB)" for line in reversed(found)]
    axes.set_yticks(range(len(found)), labels, fontsize=8)
    axes.set_ylim(-0.7, len(found) + 0.3)
    axes.set_xlabel("test accuracy (%); a worker's traffic in the whole run beside each name")
    axes.grid(axis="x", alpha=0.3)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(path, dpi=130)
    plt.close(figure)
