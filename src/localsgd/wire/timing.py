"""Seconds that all-reduces of a few sizes take on the cluster at hand."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from localsgd.wire import Collective

SCALARS = (1 << 8, 1 << 14, 1 << 17, 1 << 19)
"""Of float32: 1 KiB, where alpha shows, to 2 MiB, where beta does."""

REPEATS = 5


def measured(
    collective: Collective,
    hosted: int = 1,
    *,
    scalars: Sequence[int] = SCALARS,
    repeats: int = REPEATS,
    device: torch.device | str = "cpu",
) -> tuple[list[int], list[float]]:
    """Bytes, and seconds of an all-reduce of so many: of the slowest member, the median of several.

    All processes of the level's groups must call it at once.

    Args:
        collective: of one group.
        hosted: m.
        scalars: of float32, sizes that are tried.
        repeats: of each, after one that is not counted.
        device: where the arrays lie.
    """
    sizes, seconds = [], []
    for count in scalars:
        x = torch.zeros((1, hosted, count), device=device)
        times = [_seconds(lambda x=x: collective.sum(x).wait(), device) for _ in range(repeats + 1)]
        own = torch.full((1, hosted, 1), statistics.median(times[1:]), device=device)
        sizes.append(4 * count)
        seconds.append(float(collective.gather(own).wait().max()))
    return sizes, seconds


def _seconds(action: Callable[[], object], device: torch.device | str) -> float:
    start = time.perf_counter()
    action()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
