"""What must be the same on all processes, compared once: a mistake found here costs a second.

Found later it costs a run: ranks that average other tensors, start elsewhere, or see equal batches
train on without a word.
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
from localsgd.wire import Collective, ProcessGroup
from localsgd.wire.presence import named


def described(value: object) -> str:
    """`repr` without addresses, so that equal values read the same in all processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def digest_of_text(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def check_equal(
    digests: Mapping[str, bytes], world: Collective, device: torch.device, remedy: str
) -> None:
    """Raises on all processes where some differ, naming them and what differs.

    Args:
        digests: by what they are of, in the words of the message.
        world: joins all workers, one here.
        remedy: what would help.
    """
    mine = torch.frombuffer(bytearray(b"".join(digests.values())), dtype=torch.uint8)
    gathered = world.gather(mine.to(device)[None, None]).wait()[0].cpu()  # [K, bytes]
    refuse_differences(gathered, list(digests), remedy)


def refuse_differences(gathered: Tensor, names: Sequence[str], remedy: str) -> None:
    """Raises where digests `gathered [K, bytes]` differ: one for each of the named things."""
    for index, what in enumerate(names):
        column = gathered[:, index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
        found = [bytes(row.tolist()) for row in column]
        check_told(found, what, remedy)


def checksum(values: Tensor) -> str:
    """Of the bits of `values [n]`: read once, where they lie."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = values.detach().view(whole[values.element_size()])
    return f"{int(bits.sum(dtype=torch.int64)):x}"


def check_told(told: Sequence[str | bytes], what: str, remedy: str) -> None:
    """Raises on all processes where some differ in what they have told, by rank."""
    usual, _ = Counter(told).most_common(1)[0]
    others = [rank for rank, text in enumerate(told) if text != usual]
    if others:
        raise UserError(f"{named(others)} and rank {told.index(usual)} differ in {what}; {remedy}")


def broadcast(tensors: Iterable[Tensor], world: ProcessGroup) -> None:
    """The values of rank 0, in place; of plain tensors alone."""
    with torch.no_grad():
        for tensor in tensors:
            if tensor.numel():
                own = once(tensor)
                told = world.broadcast(bytes_of(own).clone()).wait()
                own.copy_(told.view(own.dtype).view(own.shape))


class SameBatch:
    """Warns once where all workers have the same gradients at the first step, as they do when a
    sampler was forgotten.

    Gradients are compared by three sums, to rounding, as kernels need not repeat bit for bit.
    """

    def __init__(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64)

    def add(self, gradients: Iterable[Tensor]) -> None:
        """Gradients of this worker alone, before anything is averaged."""
        for gradient in gradients:
            values = gradient.detach().to(widest(gradient.device))
            sums = torch.stack([values.sum(), values.abs().sum(), values.square().sum()])
            self._sums += sums.cpu()

    def warn(
        self,
        world: Collective,
        device: torch.device,
        first: bool,
        averaged_by: Callable[[], str | None],
    ) -> None:
        """Compares.

        Args:
            first: whether this process is the one to warn.
            averaged_by: asked where gradients are equal; says who averages them, where that is
                known, and what to do.

        Raises:
            UserError: where it is known.
        """
        own = self._sums.to(device, widest(device))
        sums = world.gather(own[None, None]).wait()[0]  # [K, 3]
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
