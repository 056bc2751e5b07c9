"""The seam between error feedback and a compressor: vectors become bytes, and bytes vectors.

A `Compressor` is a setting. For a vector of known length, with tensors in known places, it gives a
`Codec`, which turns such vectors into payloads of one fixed size and back. Vectors of several
members go through it one by one, so that their bits do not depend on how many of them a process
hosts.

Shapes: n scalars of a vector · c bytes of its payload · P payloads.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from functools import cache
from typing import Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from localsgd.errors import Diverged, UserError
from localsgd.reduce.extents import Extents


class Codec(Protocol):
    """A compressor of vectors of one length. `size` is c, the bytes of every payload."""

    @property
    def size(self) -> int: ...

    def encode(self, x: Tensor, payload: Tensor, draw: torch.Generator | None = None) -> None:
        """Writes the payload `[c]` of `x [n]`, whose padding is zero.

        Args:
            x: to be compressed.
            payload: uint8; before, zeros or what this codec has written.
            draw: where randomness comes from, for compressors that use any.
        """
        ...

    def add(self, payload: Tensor, out: Tensor, factor: float = 1.0) -> None:
        """out [n] <- out + factor · (what `payload` stands for). Padding stays as it was."""
        ...

    def fault(self, payload: Tensor) -> str | None:
        """The tensor in which `payload` has NaN or infinity; None where there is none."""
        ...


@runtime_checkable
class Reading(Protocol):
    """A codec that reads several payloads at once, and need not add the first to zeros."""

    def read(self, payloads: Tensor, out: Tensor) -> None:
        """out [n] <- the sum of what `payloads [P, c]` stand for, in order; padding becomes 0."""
        ...


@runtime_checkable
class Keeping(Protocol):
    """A codec that encodes and keeps what is lost in one passage over the memory."""

    def keep(self, x: Tensor, error: Tensor, payload: Tensor) -> None:
        """error [n] <- error + x; writes its payload `[c]`, and takes off what that stands for."""
        ...


@runtime_checkable
class Doubting(Protocol):
    """A codec that looks for NaN and infinity without waiting for the device."""

    def doubts(self, payload: Tensor) -> Tensor:
        """Whether `fault` must be asked, as a scalar where the payload lies: never no where there
        is a fault.
        """
        ...


def reads(codec: Codec) -> TypeGuard[Reading]:
    return _has(type(codec), Reading)


def keeps(codec: Codec) -> TypeGuard[Keeping]:
    return _has(type(codec), Keeping)


def doubts(codec: Codec) -> TypeGuard[Doubting]:
    return _has(type(codec), Doubting)


def first_fault(payloads: Iterable[tuple[Codec, Tensor]]) -> str | None:
    """The tensor in which the first of these payloads with NaN or infinity has it.

    The device is waited for once, where codecs doubt.
    """
    found: list[tuple[Codec, Tensor]] = []
    asked: list[Tensor] = []
    for codec, payload in payloads:
        found.append((codec, payload))
        if doubts(codec):
            asked.append(codec.doubts(payload))
    if len(asked) == len(found) and not (asked and bool(torch.stack(asked).any())):
        return None
    return next(filter(None, (codec.fault(payload) for codec, payload in found)), None)


def faulty(payloads: Iterable[tuple[Codec, Tensor]], like: Tensor) -> Tensor:
    """Whether any of these payloads may have NaN or infinity: a scalar on the device of `like`.

    The device is not waited for, where codecs doubt.
    """
    found = [
        codec.doubts(payload)
        if doubts(codec)
        else torch.tensor(codec.fault(payload) is not None, device=like.device)
        for codec, payload in payloads
    ]
    return torch.stack(found).any()


@cache
def _has(kind: type[object], protocol: type[object]) -> bool:
    """Asked once of each class: looking a protocol's names up takes as long as reading signs."""
    return issubclass(kind, protocol)


@runtime_checkable
class Compressor(Protocol):
    """A way to write a vector in fewer bytes. `repr` must tell its settings."""

    @property
    def unbiased(self) -> bool:
        """Whether what a payload stands for is, in the mean over draws, the vector."""
        return False

    @property
    def seed(self) -> int | None:
        """The seed of the draws; None for compressors that draw nothing."""
        return None

    @abstractmethod
    def codec(self, fragments: Extents, dtype: torch.dtype) -> Codec:
        """For vectors of `dtype` with tensors at `fragments`."""
        ...


class NotFinite(Diverged):
    """An update has NaN or infinity in it."""


def encode(codec: Codec, x: Tensor, draw: torch.Generator | None = None) -> Tensor:
    """Payloads `[..., c]` of `x [..., n]`."""
    payloads = torch.zeros((*x.shape[:-1], codec.size), dtype=torch.uint8, device=x.device)
    for vector, payload in zip(_each(x), _each(payloads), strict=True):
        codec.encode(vector, payload, draw)
    return payloads


def decode(codec: Codec, payloads: Tensor, like: Tensor) -> Tensor:
    """What payloads `[..., c]` stand for, in the shape and dtype of `like [..., n]`."""
    x = torch.empty_like(like, memory_format=torch.contiguous_format)
    for vector, payload in zip(_each(x), _each(payloads), strict=True):
        read(codec, payload.unsqueeze(0), vector)
    return x


def scale_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of scales and other numbers in payloads: float64 for float64 rows, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widest(device: torch.device) -> torch.dtype:
    """The widest dtype for sums on a device: Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def check_dtype(dtype: torch.dtype) -> None:
    """Refuses tensors that have no fractions to lose."""
    if not dtype.is_floating_point:
        raise UserError(
            f"{str(dtype).removeprefix('torch.')} cannot be compressed, as a rounded number would "
            "be another one; compress floating-point tensors, and leave others to the exact mean"
        )


def read(codec: Codec, payloads: Tensor, out: Tensor) -> None:
    """out [n] <- the sum of what `payloads [P, c]` stand for, in their order."""
    if reads(codec):
        codec.read(payloads, out)
    else:
        out.zero_()
        for payload in payloads:
            codec.add(payload, out)


def put(numbers: Tensor, payload: Tensor, dtype: torch.dtype | None = None) -> None:
    """The bytes of `numbers`, rounded to `dtype` where one is given, into `payload`, which may
    start anywhere.
    """
    dtype = dtype or numbers.dtype
    if _aligned(payload, dtype):
        payload.view(dtype).copy_(numbers.view(-1))
    else:
        payload.copy_(numbers.to(dtype).contiguous().view(-1).view(torch.uint8))


def take(payload: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers whose bytes `put` has written; to be read only, as they may be the payload."""
    return (payload if _aligned(payload, dtype) else payload.clone()).view(dtype)


def maybe_not_finite(numbers: Tensor) -> Tensor:
    """Whether there may be NaN or infinity among `numbers [s]`, as a scalar where they lie."""
    # One reading pass, and no mask: a sum of finite numbers alone is finite, unless it overflows.
    return numbers.sum(dtype=scale_dtype(numbers.dtype)).isfinite().logical_not()


def first_not_finite(numbers: Tensor) -> int | None:
    """The place in `numbers [s]` of the first NaN or infinity."""
    if not bool(maybe_not_finite(numbers)):
        return None
    places = torch.isfinite(numbers).logical_not().nonzero()
    return int(places[0]) if len(places) else None


def _aligned(payload: Tensor, dtype: torch.dtype) -> bool:
    """Whether numbers of `dtype` can lie where `payload` starts."""
    return payload.is_contiguous() and payload.data_ptr() % dtype.itemsize == 0 == (
        payload.storage_offset() % dtype.itemsize
    )


def _each(x: Tensor) -> list[Tensor]:
    """`x [..., n]` as vectors `[n]` that share its memory."""
    if x.dim() == 1:
        return [x]
    return [vector for part in x for vector in _each(part)]
