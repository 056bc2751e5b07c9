"""The ordered mean: the same bits however the members are spread over processes.

Each member sends chunk j of its update to member j, who adds the chunks in the order of the
members; the sums are gathered.
As many bytes as a ring: (M - 1)/M of the update out and back.
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
"""Scalars in half precision that are averaged at once, all hosted members together: what is held
beside the row stays small.
"""


@dataclass(frozen=True)
class OrderedMean(Reducer):
    """mean_k of the updates, summed as ((x_1 + x_2) + x_3) + ... by the owner of each chunk.

    Half precision is summed in float32 and rounded once, so that the mean of equal updates is
    theirs to the bit. It crosses as it is; weighted, as float32.
    """

    linear = True

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
    """`update [g, m, n]` as it is, or in half precision in parts `[g, m, <= n]`."""
    n = update.shape[-1]
    size = n
    if scale_dtype(update.dtype) != update.dtype:
        hosted = update.shape[0] * update.shape[1]
        size = members * max(1, PIECE // hosted // members)
    for start in range(0, n, max(1, size)):
        yield update[..., start : start + size]


def _mean(update: Tensor, weights: Tensor | None, collective: Collective) -> Pending[Tensor]:
    """The mean, on its way into `update[:, 0]`."""
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
    """On a GPU what is queued inside waits for all that is queued by now, and nothing queued later
    waits for it: the owner's sum would hold up a backward pass.
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
