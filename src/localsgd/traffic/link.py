"""alpha and beta of a level's link, from all-reduces of a few sizes on the cluster at hand.

    seconds(n) = alpha messages + beta bytes(n)

with a ring's messages and bytes, which is what gloo and NCCL do with large arrays. Here is what is
measured; what follows from it, in `plan`, is modelled.

Shapes: g groups · m members of each hosted here · n scalars.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from localsgd.collective import Collective
from localsgd.errors import UserError
from localsgd.traffic.allreduce import Effort, Link, ring

SCALARS = (1 << 8, 1 << 14, 1 << 17, 1 << 19)
"""Of float32: 1 KiB, where alpha shows, to 2 MiB, where beta does."""

REPEATS = 5


def fitted(
    members: int,
    sizes: Sequence[float],
    seconds: Sequence[float],
    algorithm: Callable[[int, float], Effort] = ring,
) -> Link:
    """The link whose times are nearest to those measured, in shares of them; none is negative.

    Args:
        members: M of the all-reduces.
        sizes: bytes that each member held.
        seconds: that they took.
        algorithm: that they are taken for.
    """
    if members < 2:
        return Link(0.0, 0.0)
    if len(sizes) != len(seconds) or len(set(sizes)) < 2:
        raise UserError(
            f"{len(sizes)} sizes and {len(seconds)} times don't give alpha and beta; give a time "
            "for each of at least 2 sizes"
        )
    if min(seconds) <= 0:
        raise UserError(f"an all-reduce of {min(seconds):g} seconds; times must be above 0")
    efforts = [algorithm(members, size) for size in sizes]
    # Each equation is divided by its time, so that short messages count as much as long ones.
    a = [effort.messages / took for effort, took in zip(efforts, seconds, strict=True)]
    b = [effort.bytes / took for effort, took in zip(efforts, seconds, strict=True)]
    aa, bb, ab = _dot(a, a), _dot(b, b), _dot(a, b)
    determinant = aa * bb - ab * ab
    alpha = (bb * sum(a) - ab * sum(b)) / determinant
    beta = (aa * sum(b) - ab * sum(a)) / determinant
    if alpha < 0:
        return Link(0.0, sum(b) / bb)
    if beta < 0:
        return Link(sum(a) / aa, 0.0)
    return Link(alpha, beta)


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


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
