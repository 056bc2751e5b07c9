"""Fits alpha and beta of a level's link to measured all-reduces of a few sizes.

    seconds(n) = alpha messages + beta bytes(n)

with a ring's messages and bytes, as gloo and NCCL have for large arrays.

Shapes: g groups · m members of each hosted here · n scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localsgd.basics.units import plural
from localsgd.cost.allreduce import Effort, Link, ring
from localsgd.errors import UserError


def fitted(
    members: int,
    sizes: Sequence[float],
    seconds: Sequence[float],
    algorithm: Callable[[int, float], Effort] = ring,
) -> Link:
    """The link with the smallest relative errors to the measured times; alpha and beta are >= 0.

    Args:
        members: M of the all-reduces.
        sizes: bytes of each all-reduce.
        seconds: time of each all-reduce.
        algorithm: the algorithm that is assumed.
    """
    if members < 2:
        return Link(0.0, 0.0)
    if len(sizes) != len(seconds) or len(set(sizes)) < 2:
        raise UserError(
            f"{plural(len(sizes), 'size')} and {plural(len(seconds), 'time')} don't give alpha and "
            "beta; give a time for each of at least 2 sizes"
        )
    if min(seconds) <= 0:
        raise UserError(f"an all-reduce can't take {min(seconds):g} seconds; give times above 0")
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


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
