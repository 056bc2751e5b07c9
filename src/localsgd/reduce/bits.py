"""Eight truths to a byte, the first in the lowest bit."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

_EIGHT = np.arange(8, dtype=np.uint8)
_SIGNS = np.where((np.arange(256)[:, None] >> _EIGHT) & 1, 1.0, -1.0)  # [256, 8]


def pack(truths: Tensor, payload: Tensor) -> None:
    """Bools `[n]` to bytes `[ceil(n / 8)]`; bits past the end are 0."""
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
    """`x >= 0` of `x [n]`, packed: 0 and -0 count as positive."""
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        # Four times as fast as torch.ge, whose result is one byte a scalar.
        payload.numpy()[:] = np.packbits(x.numpy() >= 0, bitorder="little")
    else:
        pack(x >= 0, payload)


@cache
def sign_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    """What each of the 256 bytes stands for: eight times ± 1, `[256, 8]`; to be read only."""
    return torch.from_numpy(_SIGNS).to(device=device, dtype=dtype, copy=True)


def look_up(places: Tensor, table: Tensor, room: Tensor) -> None:
    """Into `room [..., 8]` what lies at the `places [...]` of `table [t, 8]`."""
    if room.device.type == "cpu":
        # mode="raise" would copy `room`.
        np.take(table.numpy(), places.numpy(), axis=0, out=room.numpy(), mode="clip")
    else:
        found = table.index_select(0, places.reshape(-1).int())
        room.copy_(found.view(room.shape))
