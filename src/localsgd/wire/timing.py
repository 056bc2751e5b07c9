"""Measures the seconds of all-reduces of a few sizes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from localsgd.wire import Collective

SCALARS = (1 << 8, 1 << 14, 1 << 17, 1 << 19)
"""Sizes to measure, in float32: from 1 KiB, which shows alpha, to 2 MiB, which shows beta."""

REPEATS = 5


def measured(
    collective: Collective,
    hosted: int = 1,
    *,
    scalars: Sequence[int] = SCALARS,
    repeats: int = REPEATS,
    device: torch.device | str = "cpu",
) -> tuple[list[int], list[float]]:
    """Sizes in bytes, and the median seconds of all-reduces of these sizes, of the slowest member.

    All processes of the level's groups must call it together.

    Args:
        collective: of one group.
        hosted: m.
        scalars: the sizes to measure, in float32.
        repeats: all-reduces of each size, after one that is not counted.
        device: of the arrays.
    """
    sizes, seconds = [], []
    for count in scalars:
        x = torch.zeros((1, hosted, count), device=device)
        times = [_seconds(lambda x=x: collective.sum(x).wait(), device) for _ in range(repeats + 1)]
        mine = torch.full((1, hosted, 1), statistics.median(times[1:]), device=device)
        sizes.append(4 * count)
        seconds.append(float(collective.gather(mine).wait().max()))
    return sizes, seconds


def _seconds(action: Callable[[], object], device: torch.device | str) -> float:
    start = time.perf_counter()
    action()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
