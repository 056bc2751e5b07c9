"""The time of an all-reduce in the alpha-beta model. All of it is modelled, nothing measured.

An exchange of m bytes takes alpha + beta m seconds; a worker sends and receives at the same time,
one message each at a time, and all workers do so at once. Adding two arrays of m bytes takes gamma
m seconds (0 unless said). These are times along the critical path.

Sources: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations
in MPICH, 2005; P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of
workstations, 2009 (ring).

K: workers · n: bytes of the array that each of them holds
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from localsgd.basics.units import plural
from localsgd.errors import UserError


@dataclass(frozen=True)
class Link:
    """A link between two workers.

    Args:
        alpha: latency of a message in seconds.
        beta: seconds per byte: 8 / (bits per second).
        gamma: seconds per byte that is added up.
    """

    alpha: float
    beta: float
    gamma: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma"):
            number = getattr(self, name)
            if not 0 <= number < math.inf:
                raise UserError(
                    f"{name} = {plural(number, 'second')} is out of range; give a number >= 0"
                )

    @staticmethod
    def of_rate(bits_per_second: float, alpha: float = 0.0) -> Link:
        """A link of this many bits per second: 10e9 for 10 Gbit/s."""
        if not 0 < bits_per_second < math.inf:
            raise UserError(
                f"a link can't have {bits_per_second:g} bits per second; give a number > 0"
            )
        return Link(alpha, 8 / bits_per_second)


@dataclass(frozen=True)
class Effort:
    """The work of an all-reduce along its critical path.

    Args:
        messages: one after the other.
        bytes: sent in them.
        added: bytes added up.
    """

    messages: int
    bytes: float
    added: float

    def seconds(self, link: Link) -> float:
        """alpha messages + beta bytes + gamma added."""
        return link.alpha * self.messages + link.beta * self.bytes + link.gamma * self.added


def ring(workers: int, size: float) -> Effort:
    """A ring, around which chunks go twice: 2 (K - 1) messages, 2 n (K - 1) / K bytes.

    No algorithm sends fewer bytes; the number of messages grows with K.
    """
    _check(workers, size)
    others = workers - 1
    return Effort(2 * others, 2 * size * others / workers, size * others / workers)


def tree(workers: int, size: float) -> Effort:
    """Binomial trees, to a root and back: 2 ceil(log2 K) messages of n bytes.

    It has as few messages as recursive halving, but every message has all bytes.
    """
    _check(workers, size)
    depth = (workers - 1).bit_length()
    return Effort(2 * depth, 2 * depth * size, depth * size)


def recursive_halving(workers: int, size: float) -> Effort:
    """Reduce-scatter by halving, gather by doubling: 2 log2 K messages, 2 n (K - 1) / K bytes.

    If K is no power of two, the K - 2^k extra workers first send their arrays to others and receive
    the result at the end: 2 more messages of n bytes.
    """
    _check(workers, size)
    depth = workers.bit_length() - 1
    core = 1 << depth
    share = size * (core - 1) / core
    effort = Effort(2 * depth, 2 * share, share)
    if core == workers:
        return effort
    return Effort(effort.messages + 2, effort.bytes + 2 * size, effort.added + size)


def gather(workers: int, size: float) -> Effort:
    """A gather of every worker's n bytes: K - 1 messages, (K - 1) n bytes.

    Compressed arrays need it, since they can't be added up on the way.
    """
    _check(workers, size)
    return Effort(workers - 1, (workers - 1) * size, 0)


ALGORITHMS: dict[str, Callable[[int, float], Effort]] = {
    "ring": ring,
    "tree": tree,
    "recursive halving": recursive_halving,
}


def _check(workers: int, size: float) -> None:
    if workers < 1:
        raise UserError(f"an all-reduce can't have {plural(workers, 'worker')}; give 1 or more")
    if not 0 <= size < math.inf:
        raise UserError(f"an all-reduce can't have {size:g} bytes; give a number >= 0")
