"""Curves of runs in the height of a line: the test metric over epochs, a line for each seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.report.markup import Html, element, joined
from experiments.study import Record
from localsgd.basics.units import plural

WIDTH, HEIGHT, EDGE = 120, 28, 2
EPOCH, METRIC = 0, 1
Points = list[tuple[float, float]]


def sparkline(records: Sequence[Record]) -> Html | None:
    """The curves of some runs on one scale; `None` if there are none."""
    lines = [line for record in records if len(line := _points(record)) > 1]
    if not lines:
        return None
    values = [value for line in lines for _, value in line]
    low, high = min(values), max(values)
    last = max(epoch for line in lines for epoch, _ in line)
    first = min(epoch for line in lines for epoch, _ in line)
    drawn = joined(*(_drawn(line, (first, last), (low, high)) for line in lines))
    words = f"test metric over epochs, {plural(len(lines), 'seed')}: {low:.4g} to {high:.4g}"
    return element(
        "svg",
        element("title", words),
        drawn,
        class_="spark",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=str(WIDTH),
        height=str(HEIGHT),
        role="img",
    )


def _points(record: Record) -> Points:
    """Pairs (epoch, metric), without those that are missing or not finite."""
    rows = record.get("curve", ())
    known = [(row[EPOCH], row[METRIC]) for row in rows if row[METRIC] is not None]
    return [(x, y) for x, y in known if math.isfinite(y)]


def _drawn(line: Points, x_range: tuple[float, float], y_range: tuple[float, float]) -> Html:
    def at(value: float, low: float, high: float, length: int) -> float:
        return EDGE + (length - 2 * EDGE) * ((value - low) / (high - low) if high > low else 0.5)

    places = (
        f"{at(x, *x_range, WIDTH):.1f},{HEIGHT - at(y, *y_range, HEIGHT):.1f}" for x, y in line
    )
    return element("polyline", points=" ".join(places))
