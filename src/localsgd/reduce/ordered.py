"""The ordered mean: the same bits for every distribution of the members over processes.

Each member sends chunk j of its update to member j, which averages the chunks in the order of the
members; the means are gathered. It takes as many bytes as a ring: (M - 1)/M of the update each way.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from localsgd.reduce.compressor import scale_dtype, widest
from localsgd.reduce.reducer import Reducer
from localsgd.wire.collective import Collective, Pending

PIECE = 1 << 23
"""Most half-precision scalars that are averaged at once, over all hosted members together.

It keeps the memory needed beside the row small.
"""


@dataclass(frozen=True)
class OrderedMean(Reducer):
    """mean_k of the updates, summed as ((x_1 + x_2) + x_3) + ... by the owner of each chunk.

    The mean of equal updates equals them to the bit, for every M and dtype. Numbers are summed in a
    wider dtype and rounded once: half precision in float32, float32 in float64. If there is no
    wider one, the mean is x_1 + mean_k (x_k - x_1).

    With weights, half precision is sent and summed as float32, and float32 and float64 as they are.
    """

    linear = True
    members_may_change = True

    def reduce(
        self, update: Tensor, weights: Tensor | None, collective: Collective
    ) -> Pending[Tensor]:
        if weights is None and collective.members == 1:
            return Pending.done(update[:, 0])
        under_way: Pending[Tensor] | None = None
        for part in _pieces(update, collective.members):
            with _aside(update.device):
                following = _mean(part, weights, collective)
            if under_way is not None:
                under_way.wait()
            under_way = following
        return (
            Pending.done(update[:, 0])
            if under_way is None
            else under_way.then(lambda _: update[:, 0])
        )


def _pieces(update: Tensor, members: int) -> Iterator[Tensor]:
    """The whole `update [g, m, n]`, or its parts `[g, m, <= n]` in half precision."""
    n = update.shape[-1]
    size = n
    if scale_dtype(update.dtype) != update.dtype:
        hosted = update.shape[0] * update.shape[1]
        size = members * max(1, PIECE // hosted // members)
    for start in range(0, n, max(1, size)):
        yield update[..., start : start + size]


def _mean(update: Tensor, weights: Tensor | None, collective: Collective) -> Pending[Tensor]:
    """Starts the mean, which is written into `update[:, 0]`."""
    n, members = update.shape[-1], collective.members
    wide = scale_dtype(update.dtype)
    sent = update
    if weights is not None:
        sent = update.to(wide).mul_(weights.unsqueeze(-1))
    if n % members:
        sent = torch.nn.functional.pad(sent, (0, -n % members))
    received = collective.exchange(sent.unflatten(-1, (members, -1))).wait()
    mean = _total(received, wide) if weights is not None else _mean_of(received)
    pending = collective.gather(mean.to(update.dtype))
    return pending.then(lambda mean: update[:, 0].copy_(mean.flatten(1)[:, :n]))


def _total(received: Tensor, dtype: torch.dtype) -> Tensor:
    """Sums `received [g, m, M, c]` over the M senders, in their order: `[g, m, c]`."""
    total = received[:, :, 0].to(dtype, copy=True)
    for source in range(1, received.shape[2]):
        total += received[:, :, source]
    return total


def _mean_of(received: Tensor) -> Tensor:
    """The mean of `received [g, m, M, c]` over the M senders; of equal ones, theirs to the bit."""
    wide = scale_dtype(received.dtype)
    if wide == received.dtype:
        wide = widest(received.device)
    members = received.shape[2]
    if wide != received.dtype:
        return _total(received, wide).div_(members)
    first = received[:, :, 0]
    differences = torch.zeros_like(first)
    for source in range(1, members):
        differences += received[:, :, source] - first
    return differences.div_(members).add_(first)


@contextmanager
def _aside(device: torch.device) -> Generator[None]:
    """Queues work on a side stream of a GPU, so that a backward pass doesn't wait for it.

    The work itself waits for everything queued before.
    """
    if device.type != "cuda":
        yield
        return
    stream = _side_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
