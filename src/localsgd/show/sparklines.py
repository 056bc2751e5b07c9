"""Small pictures in text: a curve in one line of block characters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

BLOCKS = "▁▂▃▄▅▆▇█"


def block(value: float, low: float, high: float) -> str:
    """The block whose height says where `value` lies between `low` and `high`."""
    if not math.isfinite(value):
        return " "
    part = (value - low) / (high - low) if high > low else 1.0
    return BLOCKS[min(len(BLOCKS) - 1, max(0, math.floor(part * len(BLOCKS))))]


def sparkline(function: Callable[[int], float], length: int, width: int) -> str:
    """`function`, positive, of 0 ... `length` - 1 in `width` blocks, on a logarithmic scale."""
    width = min(width, length)
    steps = [column * (length - 1) // max(1, width - 1) for column in range(width)]
    heights = [math.log(max(function(step), 1e-300)) for step in steps]
    return "".join(block(height, min(heights), max(heights)) for height in heights)


def shorten(text: str, width: int) -> str:
    """`text`, cut with an ellipsis if it is longer than `width`."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def thin(items: Sequence, most: int) -> list:
    """At most `most` of `items`, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]
