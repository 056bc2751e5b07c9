"""Packs bools into bytes, eight to a byte, the first in the lowest bit."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

_EIGHT = np.arange(8, dtype=np.uint8)
_SIGNS = np.where((np.arange(256)[:, None] >> _EIGHT) & 1, 1.0, -1.0)  # [256, 8]


def pack(truths: Tensor, payload: Tensor) -> None:
    """Packs bools `[n]` into bytes `[ceil(n / 8)]`; bits past the end are 0."""
    if truths.device.type == "cpu":
        payload.numpy()[:] = np.packbits(truths.numpy(), bitorder="little")
    else:
        pack_anywhere(truths, payload)


def unpack(payload: Tensor, length: int) -> Tensor:
    """The inverse of `pack`, of `length` bools."""
    if payload.device.type == "cpu":
        bits = np.unpackbits(payload.numpy(), count=length, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_))
    return unpack_anywhere(payload, length)


def pack_anywhere(truths: Tensor, payload: Tensor) -> None:
    """`pack` on any device."""
    padded = torch.nn.functional.pad(truths.to(torch.uint8), (0, -len(truths) % 8))
    shifts = torch.arange(8, dtype=torch.uint8, device=truths.device)
    payload.copy_((padded.view(-1, 8) << shifts).sum(-1, dtype=torch.uint8))


def unpack_anywhere(payload: Tensor, length: int) -> Tensor:
    """`unpack` on any device."""
    shifts = torch.arange(8, dtype=torch.uint8, device=payload.device)
    return ((payload.unsqueeze(-1) >> shifts) & 1).view(-1)[:length].bool()


def pack_signs(x: Tensor, payload: Tensor) -> None:
    """Packs `x >= 0` of `x [n]`: 0 and -0 count as positive."""
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        # Four times as fast as torch.ge, whose result is one byte a scalar.
        payload.numpy()[:] = np.packbits(x.numpy() >= 0, bitorder="little")
    else:
        pack(x >= 0, payload)


@cache
def sign_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The eight signs ± 1 of each of the 256 bytes, `[256, 8]`; don't change it."""
    return torch.from_numpy(_SIGNS).to(device=device, dtype=dtype, copy=True)


def look_up(indices: Tensor, table: Tensor, room: Tensor) -> None:
    """Writes the rows of `table [t, 8]` at `indices [...]` into `room [..., 8]`."""
    if room.device.type == "cpu":
        # mode="raise" would copy `room`.
        np.take(table.numpy(), indices.numpy(), axis=0, out=room.numpy(), mode="clip")
    else:
        found = table.index_select(0, indices.reshape(-1).int())
        room.copy_(found.view(room.shape))
