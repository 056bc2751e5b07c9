"""The ordered mean: the same bits for every distribution of the members over processes.

Each member sends chunk j of its update to member j, which adds the chunks in the order of the
members; the sums are gathered. It takes as many bytes as a ring: (M - 1)/M of the update each way.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from localsgd.reduce.compressor import scale_dtype
from localsgd.reduce.reducer import Reducer
from localsgd.wire.collective import Collective, Pending

PIECE = 1 << 23
"""Most half-precision scalars that are averaged at once, over all hosted members together.

It keeps the memory needed beside the row small.
"""


@dataclass(frozen=True)
class OrderedMean(Reducer):
    """mean_k of the updates, summed as ((x_1 + x_2) + x_3) + ... by the owner of each chunk.

    Half precision is summed in float32 and rounded once, so that the mean of equal updates equals
    them to the bit. It is sent as it is, or as float32 if there are weights.
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
    total = received[:, :, 0].to(wide, copy=True)  # [g, m, c]
    for source in range(1, members):
        total += received[:, :, source]
    if weights is None:
        total /= members
    pending = collective.gather(total.to(update.dtype))
    return pending.then(lambda mean: update[:, 0].copy_(mean.flatten(1)[:, :n]))


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
