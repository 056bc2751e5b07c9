"""Curves of runs in the height of a line: the test metric over epochs, a line for each seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.report.images import Image
from experiments.study import Record
from localsgd.basics.units import plural

WIDTH, HEIGHT, EDGE = 120, 28, 2
EPOCH, METRIC = 0, 1
STYLE = 'fill="none" stroke="#3d8bc0" stroke-width="1.4" opacity="0.7"'
Points = list[tuple[float, float]]


def sparkline(records: Sequence[Record]) -> tuple[str, Image] | None:
    """The curves of some runs on one scale, and what they show; `None` where there are none."""
    lines = [line for record in records if len(line := _points(record)) > 1]
    if not lines:
        return None
    epochs, values = zip(*(point for line in lines for point in line), strict=True)
    drawn = "".join(
        f'<polyline points="{" ".join(_places(line, epochs, values))}"/>' for line in lines
    )
    words = (
        f"test metric over epochs, {plural(len(lines), 'seed')}: "
        f"{min(values):.4g} to {max(values):.4g}"
    )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">'
        f"<g {STYLE}>{drawn}</g></svg>"
    )
    return words, Image("svg", svg.encode())


def _points(record: Record) -> Points:
    """Pairs (epoch, metric), without those that are missing or not finite."""
    rows = record.get("curve", ())
    known = [(row[EPOCH], row[METRIC]) for row in rows if row[METRIC] is not None]
    return [(x, y) for x, y in known if math.isfinite(y)]


def _places(line: Points, epochs: Sequence[float], values: Sequence[float]) -> list[str]:
    def at(value: float, among: Sequence[float], length: int) -> float:
        low, high = min(among), max(among)
        return EDGE + (length - 2 * EDGE) * ((value - low) / (high - low) if high > low else 0.5)

    return [f"{at(x, epochs, WIDTH):.1f},{HEIGHT - at(y, values, HEIGHT):.1f}" for x, y in line]
