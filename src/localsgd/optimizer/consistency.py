"""Compares once what must be equal on all processes.

Ranks that average different tensors, start from different weights, or see equal batches would train
on without an error.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from localsgd.basics.messages import MOST, read_messages
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
    gathered = _gathered(b"".join(digests.values()), everyone, device)
    for ranks in [range(len(gathered))] if groups is None else groups:
        for index, what in enumerate(digests):
            start = index * DIGEST_BYTES
            found = [gathered[rank][start : start + DIGEST_BYTES] for rank in ranks]
            check_same_values(found, what, remedy, ranks)
    return gathered


def checksum(values: Tensor) -> str:
    """A checksum of the bits of `values [n]`."""
    return f"{int(bits_of(values)):x}"


def bits_of(values: Tensor) -> Tensor:
    """A sum of the bits of `values [n]`, computed on their device in one pass, unawaited."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.detach().view(whole[values.element_size()]).sum(dtype=torch.int64)


def check_settings(
    what: str,
    values: Mapping[str, str],
    everyone: Collective,
    device: torch.device,
    remedy: str,
    groups: Iterable[Sequence[int]],
) -> None:
    """Raises on all processes if some have other values, with the first such value and its ranks.

    Args:
        what: the values are, in words; each by its own name if empty.
        values: of this rank, by name.
        everyone, remedy, groups: as in `check_equal`.
    """
    text = json.dumps(values)
    digests = _gathered(digest_of_text(text), everyone, device)
    if all(len({digests[rank] for rank in ranks}) == 1 for ranks in groups):
        return
    lengths = _gathered(f"{len(text.encode()):20}".encode(), everyone, device)
    length = min(MOST, max(read_messages(lengths, int)))
    texts = _gathered(text.encode()[:length].ljust(length), everyone, device)
    found = read_messages(texts, dict[str, str])
    for ranks in groups:
        if differs := difference({rank: found[rank] for rank in ranks}):
            name, said = differs
            which = f"{what} ({name})" if what else name
            others = [rank for rank in ranks if found[rank].get(name) != found[ranks[0]].get(name)]
            raise UserError(
                f"{named(others)} and rank {ranks[0]} differ in {which}: {said}; {remedy}"
            )


def difference(found: Mapping[int, Mapping[str, str]]) -> tuple[str, str] | None:
    """The first name under which ranks have different values, and what each has, in words."""
    for name in dict.fromkeys(name for values in found.values() for name in values):
        ranks_of: dict[str, list[int]] = {}
        for rank, values in found.items():
            ranks_of.setdefault(values.get(name, "none"), []).append(rank)
        if len(ranks_of) > 1:
            said = (
                f"{named(ranks)} ha{'s' if len(ranks) == 1 else 've'} {_shortened(value)}"
                for value, ranks in ranks_of.items()
            )
            return name, ", ".join(said)
    return None


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


def _gathered(mine: bytes, everyone: Collective, device: torch.device) -> list[bytes]:
    """The bytes of all ranks, which are equally many."""
    sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(device)[None, None]
    return [bytes(row.tolist()) for row in everyone.gather(sent).wait()[0].cpu()]


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
        self._sums = torch.zeros(3, dtype=torch.float64, device="cpu")

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
