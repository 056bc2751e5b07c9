from __future__ import annotations

import pytest
import torch

from localsgd.errors import UserError
from localsgd.reduce import Int8
from localsgd.reduce.compressor import decode, encode
from localsgd.reduce.extents import Extents

X = torch.tensor([127.0, 1.4, -1.6, -127.0, 0.0, 0.0, 254.0])


def test_levels_of_each_chunk() -> None:
    codec = Int8(3).codec(Extents.whole(7), X.dtype)
    payload = encode(codec, X)
    assert payload[:12].clone().view(torch.float32).tolist() == [1, 1, 2]
    assert payload[12:].view(torch.int8).tolist() == [127, 1, -2, -127, 0, 0, 127]
    assert decode(codec, payload, X).tolist() == [127, 1, -2, -127, 0, 0, 254]


def test_stochastic_rounding_follows_its_generator() -> None:
    codec = Int8(3, seed=0).codec(Extents.whole(7), X.dtype)
    drawn = [encode(codec, X, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2, 3, 4, 5)]
    assert torch.equal(drawn[0], drawn[1])
    assert {tuple(payload.tolist()) for payload in drawn[1:]} != {tuple(drawn[0].tolist())}
    assert all(payload[12].item() == 127 for payload in drawn)  # the largest has no fraction


def test_says_whether_it_is_unbiased() -> None:
    assert not Int8().unbiased
    assert Int8(seed=0).unbiased


def test_a_chunk_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="chunk = 0 is too small"):
        Int8(0)
