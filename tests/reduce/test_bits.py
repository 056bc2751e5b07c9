from __future__ import annotations

import pytest
import torch

from localsgd.reduce.bits import (
    look_up,
    pack,
    pack_anywhere,
    pack_signs,
    sign_table,
    unpack,
    unpack_anywhere,
)


def truths(n: int) -> torch.Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(n)) < 0.5


def packed(x: torch.Tensor, by=pack) -> torch.Tensor:
    payload = torch.full((-(-len(x) // 8),), 255, dtype=torch.uint8)
    by(x, payload)
    return payload


def test_the_first_lies_in_the_lowest_bit() -> None:
    x = torch.tensor([True, False, False, False, False, False, True, False, True])
    assert packed(x).tolist() == [1 + 64, 1]


@pytest.mark.parametrize("n", range(1, 71))
def test_round_trips_on_any_device(n: int) -> None:
    x = truths(n)
    assert torch.equal(packed(x), packed(x, pack_anywhere))
    assert torch.equal(unpack(packed(x), n), x)
    assert torch.equal(unpack_anywhere(packed(x), n), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_zeros_of_either_sign_are_positive(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30], dtype=dtype)
    assert packed(x, pack_signs).tolist() == [0b010111]


@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 70])
def test_looks_signs_up(n: int) -> None:
    x = truths(n)
    room = torch.empty((-(-n // 8), 8), dtype=torch.float64)
    look_up(packed(x), 0.3 * sign_table(room.dtype, room.device), room)
    assert torch.equal(room.view(-1)[:n], 0.3 * torch.where(x, 1.0, -1.0).double())
