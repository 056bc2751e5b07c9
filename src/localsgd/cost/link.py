"""alpha and beta of a level's link, from all-reduces of a few sizes on the cluster at hand.

    seconds(n) = alpha messages + beta bytes(n)

with a ring's messages and bytes, which is what gloo and NCCL do with large arrays. Here is what is
measured; what follows from it, in `plan`, is modelled.

Shapes: g groups · m members of each hosted here · n scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localsgd.cost.allreduce import Effort, Link, ring
from localsgd.errors import UserError


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


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
