"""The largest scalars of a vector, in two bits each.

Payload: the largest magnitude s; k codes of two bits, for -s, -s/3, s/3 and s; k indices of 32
bits.

n: scalars of a vector · k: those that are sent
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from localsgd import UserError
from localsgd.reduce import Compressor, Extents, check_dtype, put, scale_dtype, take

SHIFTS = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)


@dataclass(frozen=True)
class TwoBit(Compressor):
    """Sends the largest scalars, rounded to the nearest of four values.

    Args:
        fraction: of the scalars that are sent, in (0, 1]; k is rounded up.
    """

    fraction: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise UserError(f"two-bit.fraction={self.fraction:g} is out of range; give (0, 1]")

    def codec(self, fragments: Extents, dtype: torch.dtype) -> TwoBitCodec:
        check_dtype(dtype)
        if fragments.length >= 2**31:
            raise UserError(
                f"two-bit has indices of 32 bits, too few for {fragments.length} scalars"
            )
        k = math.ceil(round(self.fraction * fragments.scalars, 6)) or min(1, fragments.scalars)
        return TwoBitCodec(fragments, scale_dtype(dtype), k)


class TwoBitCodec:
    """Of vectors of one length."""

    def __init__(self, fragments: Extents, dtype: torch.dtype, k: int) -> None:
        self._fragments = fragments
        self._dtype = dtype  # of the scale
        self._k = k
        self._codes = dtype.itemsize  # where they begin
        self._indices = self._codes + -(-k // 4)
        self.size = self._indices + 4 * k

    def encode(self, x: Tensor, payload: Tensor, draw: torch.Generator | None = None) -> None:
        chosen = torch.topk(x.abs(), self._k, sorted=False).indices.sort().values
        values = x[chosen].to(self._dtype)
        scale = values.new_zeros(1) if not self._k else values.abs().max().reshape(1)
        steps = 1.5 * (values / scale.where(scale > 0, 1.0)) + 1.5
        codes = steps.round().nan_to_num(0.0).clamp(0, 3).to(torch.uint8)
        codes = torch.nn.functional.pad(codes, (0, -self._k % 4)).view(-1, 4)
        put(scale, payload[: self._codes])
        payload[self._codes : self._indices] = (codes << SHIFTS.to(x.device)).sum(1).to(torch.uint8)
        put(chosen.to(torch.int32), payload[self._indices :])

    def add(self, payload: Tensor, out: Tensor, factor: float = 1.0) -> None:
        scale = take(payload[: self._codes], self._dtype)
        packed = payload[self._codes : self._indices].unsqueeze(1)
        codes = ((packed >> SHIFTS.to(out.device)) & 3).flatten()[: self._k]
        values = (codes.to(self._dtype) - 1.5) / 1.5 * scale
        out[take(payload[self._indices :], torch.int32).long()] += (factor * values).to(out.dtype)

    def fault(self, payload: Tensor) -> str | None:
        finite = take(payload[: self._codes], self._dtype).isfinite().all()
        return None if finite else self._fragments.names(0, self._fragments.length)
