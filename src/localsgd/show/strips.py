"""Runs as strips of block characters: quality against the bytes that a worker has sent."""

from __future__ import annotations

import math
from collections.abc import Sequence

from localsgd.basics.units import size
from localsgd.results import grouping
from localsgd.results.grouping import Group
from localsgd.show.sparklines import block, shorten
from localsgd.train.data.metric import Metric
from localsgd.train.engine.run_folder import Folder

LEAST_ERROR = 1e-4
"""An accuracy of 1 counts as this far from it, so that its logarithm exists."""
MOST_ERROR = 1e9
"""The largest perplexity that is shown; larger ones count as this."""


WIDTH = 72
"""Of a strip with its name, where there is room."""


def text(folders: Sequence[Folder], width: int = WIDTH) -> str:
    """Test accuracy (or perplexity) against bytes a worker has sent, for terminals.

    A strip for each method starts at the first evaluation and ends with the run; its blocks grow as
    the model gets better, on a logarithmic scale of the error. Bytes run logarithmically too. Empty
    where nothing was sent and evaluated.
    """
    groups = [group for group in grouping.groups(folders) if _points(group)]
    if not groups:
        return ""
    metric = grouping.metric(groups)
    names = [shorten(group.title, width // 3) for group in groups]
    left = max(map(len, names)) + 2
    strip = max(8, width - left - 8)
    sent = [bytes_ for group in groups for bytes_, _ in _points(group)]
    heights = [_height(value, metric) for group in groups for _, value in _points(group)]
    scale = _Scale(min(sent), max(sent), strip)
    low, high = min(heights), max(heights)
    lines = [shorten(f"test {metric.name} against bytes sent per member", width)]
    for name, group in zip(names, groups, strict=True):
        drawn = _strip(_points(group), scale, low, high, metric)
        last = metric.words(_points(group)[-1][1], 1)
        lines.append(f"{name:<{left}}{drawn:<{strip}} {last:>7}")
    lines += [" " * left + scale.axis(), _legend(low, high, width, metric)]
    return "\n".join(line.rstrip() for line in lines)


def _points(group: Group) -> list[tuple[float, float]]:
    """(bytes over all levels, quality) of each evaluation after something was sent."""
    points = [(sum(point.bytes), point.quality.mean) for point in group.curve]
    return [point for point in points if point[0] > 0]


def _height(value: float, metric: Metric) -> float:
    error = metric.error(value)
    if math.isnan(error):
        return -math.log10(MOST_ERROR)
    return -math.log10(min(MOST_ERROR, max(LEAST_ERROR, error)))


class _Scale:
    """Maps bytes to columns on a logarithmic scale."""

    def __init__(self, low: float, high: float, width: int) -> None:
        self.low, self.width = math.log10(low), width
        self.high = max(math.log10(high), self.low + 1e-9)

    def column(self, bytes_: float) -> int:
        part = (math.log10(bytes_) - self.low) / (self.high - self.low)
        return min(self.width - 1, round(part * (self.width - 1)))

    def axis(self) -> str:
        """Labels of the axis: the first and last number of bytes, and those that fit between."""
        drawn = ""
        for column in range(self.width):
            part = column / max(1, self.width - 1)
            mark = "└" + size(10 ** (self.low + part * (self.high - self.low)))
            if column == 0 or (column >= len(drawn) + 8 and column + len(mark) <= self.width):
                drawn = drawn.ljust(column) + mark
        return drawn


def _strip(
    points: list[tuple[float, float]], scale: _Scale, low: float, high: float, metric: Metric
) -> str:
    columns = {scale.column(bytes_): value for bytes_, value in points}
    drawn, now = "", None
    for column in range(max(columns) + 1):
        now = columns.get(column, now)
        drawn += " " if now is None else block(_height(now, metric), low, high)
    return drawn


def _legend(low: float, high: float, width: int, metric: Metric) -> str:
    """The values of as many blocks as there is room for."""
    marks: dict[str, str] = {}
    for index in (0, 2, 4, 6, 7):
        height = low + (high - low) * index / 8
        value = metric.words(metric.at(10**-height), 1)
        marks.setdefault(value, block(height + 1e-9, low, high))
    words = [f"{mark} from {value}" for value, mark in marks.items()]
    while len(words) > 1 and len("   ".join(words)) > width:
        del words[len(words) // 2]
    return "   ".join(words)
