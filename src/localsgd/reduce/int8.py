"""Eight bits per scalar, with a scale for each chunk.

    q = round(127 v / max|v|),   C(v) = q · max|v| / 127   over chunks of fixed length

Rounding is to the nearest, or stochastic, which makes C unbiased (Alistarh et al. 2017, QSGD, with
the largest entry as the norm).

Payload: the chunks' scales, then a byte for each scalar.

Shapes: n scalars of a vector · b chunks · l scalars of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.reduce.compressor import (
    check_dtype,
    first_not_finite,
    maybe_not_finite,
    put,
    scale_dtype,
    take,
)
from localsgd.reduce.extents import Extents

LEVELS = 127


@dataclass(frozen=True)
class Int8:
    """Rounding to 255 levels.

    Args:
        chunk: l, scalars that share a scale.
        seed: of stochastic rounding, which rounds up with the probability of the fractional part;
            if not given, rounding is to the nearest.
    """

    chunk: int = 1024
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise UserError(f"chunk = {self.chunk} is too small; give 1 scalar or more")

    @property
    def unbiased(self) -> bool:
        return self.seed is not None

    def codec(self, fragments: Extents, dtype: torch.dtype) -> Int8Codec:
        check_dtype(dtype)
        return Int8Codec(fragments, scale_dtype(dtype), self.chunk)


class Int8Codec:
    """Levels and scales of vectors of one length."""

    def __init__(self, fragments: Extents, dtype: torch.dtype, chunk: int) -> None:
        self._fragments = fragments
        self._dtype = dtype
        self._chunk = chunk
        self._scale_bytes = -(-fragments.length // chunk) * dtype.itemsize

    @property
    def size(self) -> int:
        return self._scale_bytes + self._fragments.length

    def encode(self, x: Tensor, payload: Tensor, draw: torch.Generator | None = None) -> None:
        chunks = self._in_chunks(x.to(self._dtype))  # [b, l]
        scales = chunks.abs().amax(1, keepdim=True) / LEVELS
        levels = chunks / scales.where(scales > 0, 1.0)
        if draw is None:
            levels.round_()
        else:
            drawn = torch.rand(levels.shape, generator=draw, dtype=self._dtype, device="cpu")
            levels += drawn.to(x.device)
            levels.floor_()
        levels = levels.nan_to_num_(0.0).clamp_(-LEVELS, LEVELS).to(torch.int8)
        put(scales, payload[: self._scale_bytes])
        put(levels.view(-1)[: len(x)], payload[self._scale_bytes :])

    def add(self, payload: Tensor, out: Tensor, factor: float = 1.0) -> None:
        scales = take(payload[: self._scale_bytes], self._dtype)
        levels = self._in_chunks(payload[self._scale_bytes :].view(torch.int8).to(self._dtype))
        out.add_((levels * (scales * factor).unsqueeze(1)).view(-1)[: len(out)])

    def doubts(self, payload: Tensor) -> Tensor:
        return maybe_not_finite(take(payload[: self._scale_bytes], self._dtype))

    def fault(self, payload: Tensor) -> str | None:
        chunk = first_not_finite(take(payload[: self._scale_bytes], self._dtype))
        if chunk is None:
            return None
        return self._fragments.names(chunk * self._chunk, (chunk + 1) * self._chunk)

    def _in_chunks(self, x: Tensor) -> Tensor:
        """Reshapes `[n]` to `[b, l]`, with the last chunk filled up with zeros."""
        return torch.nn.functional.pad(x, (0, -len(x) % self._chunk)).view(-1, self._chunk)
