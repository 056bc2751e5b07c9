from __future__ import annotations

import torch

from localsgd.reduce import BFloat16
from localsgd.reduce.compressor import decode, encode
from localsgd.reduce.extents import Extents


def test_rounds_to_nearest_even() -> None:
    x = torch.tensor([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -3.0e38], dtype=torch.float32)
    codec = BFloat16().codec(Extents.whole(4), x.dtype)
    found = decode(codec, encode(codec, x), x)
    assert found[:3].tolist() == [1.0, 1.0, 1 + 2**-6]
    assert codec.size == 8
