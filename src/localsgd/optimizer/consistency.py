"""Compares once what must be equal on all processes.

Ranks that average different tensors, start from different weights, or see equal batches would train
on without an error.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.reduce.compressor import widest
from localsgd.rows.parts import DIGEST_BYTES, bytes_of, once
from localsgd.rows.shards import local
from localsgd.wire import Collective, ProcessGroup
from localsgd.wire.presence import named


def described(value: object) -> str:
    """`repr` without addresses, so that equal values give equal texts in all processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def digest_of_text(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def check_equal(
    digests: Mapping[str, bytes],
    everyone: Collective,
    device: torch.device,
    remedy: str,
    groups: Iterable[Sequence[int]] | None = None,
) -> list[bytes]:
    """Raises on all processes if some differ, with their ranks and what differs.

    Args:
        digests: by the name that the message uses for what they are of.
        everyone: joins all ranks.
        remedy: the end of the message, which says what to do.
        groups: of ranks that are compared; all are, if not given.

    Returns:
        The digests of all ranks, each rank's after one another.
    """
    mine = torch.frombuffer(bytearray(b"".join(digests.values())), dtype=torch.uint8)
    gathered = everyone.gather(mine.to(device)[None, None]).wait()[0].cpu()  # [ranks, bytes]
    for ranks in [range(len(gathered))] if groups is None else groups:
        refuse_differences(gathered[list(ranks)], list(digests), remedy, ranks)
    return [bytes(row.tolist()) for row in gathered]


def refuse_differences(
    gathered: Tensor, names: Sequence[str], remedy: str, ranks: Sequence[int]
) -> None:
    """Raises if digests `gathered [K, bytes]` differ; they are concatenated in order of `names`."""
    for index, what in enumerate(names):
        column = gathered[:, index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
        found = [bytes(row.tolist()) for row in column]
        check_same_values(found, what, remedy, ranks)


def checksum(values: Tensor) -> str:
    """A checksum of the bits of `values [n]`, computed on their device in one pass."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = values.detach().view(whole[values.element_size()])
    return f"{int(bits.sum(dtype=torch.int64)):x}"


def check_same_values(
    values: Sequence[str | bytes], what: str, remedy: str, ranks: Sequence[int]
) -> None:
    """Raises if the values of some ranks differ; all processes get the same error."""
    usual, _ = Counter(values).most_common(1)[0]
    others = [rank for rank, text in zip(ranks, values, strict=True) if text != usual]
    if others:
        first = ranks[values.index(usual)]
        raise UserError(f"{named(others)} and rank {first} differ in {what}; {remedy}")


def broadcast(tensors: Iterable[Tensor], world: ProcessGroup) -> None:
    """Overwrites plain tensors with the values of rank 0."""
    with torch.no_grad():
        for tensor in tensors:
            if tensor.numel():
                here = once(tensor)
                received = world.broadcast(bytes_of(here).clone()).wait()
                here.copy_(received.view(here.dtype).view(here.shape))


class SameBatch:
    """Warns if all workers have the same gradients at the first step, as without a sampler.

    Gradients are compared by three sums, up to rounding, as kernels need not repeat bit for bit.
    """

    def __init__(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64)

    def add(self, gradients: Iterable[Tensor]) -> None:
        """Adds gradients of this worker, before anything is averaged."""
        for gradient in gradients:
            values = local(gradient).detach().to(widest(gradient.device))
            sums = torch.stack([values.sum(), values.abs().sum(), values.square().sum()])
            self._sums += sums.cpu()

    def warn(
        self,
        world: Collective,
        device: torch.device,
        first: bool,
        averaged_by: Callable[[], str | None],
    ) -> None:
        """Compares the gradients of all workers, and warns if they are equal.

        Args:
            first: whether this process is the one to warn.
            averaged_by: called if gradients are equal; a message that says who has averaged them
                and what to do, or `None` if that is unknown.

        Raises:
            UserError: with that message, if there is one.
        """
        mine = self._sums.to(device, widest(device))
        sums = world.gather(mine[None, None]).wait()[0]  # [K, 3]
        spread = (sums - sums[:1]).abs()
        equal = bool((spread <= 1e-6 * sums[:1, 1:2].abs().maximum(sums[:1].abs())).all())
        if not equal or not bool(sums[0, 1] > 0):
            return
        if text := averaged_by():
            raise UserError(text)
        if first:
            warnings.warn(
                f"all {world.members} workers have the same gradients at the first step: they "
                "probably see the same batches (give each rank its own part of the data, for "
                "example with torch.utils.data.DistributedSampler)",
                stacklevel=2,
            )
