"""What every compressor promises alone: its payloads and what they stand for.

Shapes: n scalars · c bytes of a payload.
"""

from __future__ import annotations

import math

import pytest
import torch

from localsgd.errors import UserError
from localsgd.reduce import CompressedMean
from localsgd.reduce.compressed import Chunk
from localsgd.reduce.compressor import decode, encode, read
from localsgd.reduce.extents import Extents
from localsgd.wire import InProcess
from tests.conformance.compressors import (
    FLOAT,
    LAYOUT,
    ROW,
    STOCHASTIC,
    Kind,
    drawn,
    every_dtype,
    every_kind,
    int8_drawn,
    masked,
    updates,
)


@every_kind
@every_dtype
def test_stands_for_what_the_obvious_way_gives(kind: Kind, dtype: torch.dtype) -> None:
    x = updates(dtype=dtype)
    codec = kind.compressor.codec(ROW, dtype)
    tolerance = kind.tolerance and (kind.tolerance if dtype == torch.float64 else 1e-6)
    found = decode(codec, encode(codec, x), x)
    torch.testing.assert_close(found, kind.obvious(x, ROW), rtol=tolerance, atol=0)


@every_kind
@pytest.mark.parametrize("n", range(1, 71))
def test_any_length_comes_back(kind: Kind, n: int) -> None:
    x, row = drawn(n, seed=n), Extents.whole(n)
    codec = kind.compressor.codec(row, x.dtype)
    payload = encode(codec, x)
    assert payload.shape == (codec.size,)
    assert codec.size == kind.size(row, 8)
    found = decode(codec, payload, x)
    torch.testing.assert_close(found, kind.obvious(x, row), rtol=kind.tolerance, atol=0)


@every_kind
@every_dtype
def test_payloads_have_the_size_that_is_stated(kind: Kind, dtype: torch.dtype) -> None:
    codec = kind.compressor.codec(ROW, dtype)
    assert codec.size == kind.size(ROW, FLOAT[dtype])
    assert encode(codec, updates(2, 3, dtype=dtype)).shape == (2, 3, codec.size)


@every_kind
def test_adds_a_multiple_of_what_it_stands_for(kind: Kind) -> None:
    x, out = updates(), updates(seed=2)
    codec = kind.compressor.codec(ROW, x.dtype)
    payload = encode(codec, x)
    expected = out - 0.25 * decode(codec, payload, x)
    codec.add(payload, out, -0.25)
    torch.testing.assert_close(out, expected, rtol=1e-14, atol=1e-14)


@every_kind
@every_dtype
def test_reading_is_adding_to_zeros(kind: Kind, dtype: torch.dtype) -> None:
    x, out = updates(dtype=dtype), drawn(LAYOUT.length, seed=2, dtype=dtype)
    codec = kind.compressor.codec(ROW, dtype)
    payload = encode(codec, x)
    added = torch.zeros_like(x)
    codec.add(payload, added)
    read(codec, payload.unsqueeze(0), out)
    assert torch.equal(out, added)


@every_kind
@every_dtype
def test_keeping_is_encoding_and_taking_off(kind: Kind, dtype: torch.dtype) -> None:
    """The same bits; into a payload that was written before, as into zeros."""
    x, error = updates(dtype=dtype), updates(seed=2, dtype=dtype)
    codec = kind.compressor.codec(ROW, dtype)
    payload = encode(codec, updates(seed=3, dtype=dtype))
    expected = error + x
    sent = encode(codec, expected)
    codec.add(sent, expected, -1.0)
    Chunk(0, ROW.length, codec).encode(x, error, payload, None)
    assert torch.equal(payload, sent)
    assert torch.equal(error, expected)


@every_kind
def test_nothing_stays_nothing(kind: Kind) -> None:
    """A tensor that is never trained does not move, and nor does padding."""
    x = updates()
    x[: ROW.fragments[0].stop] = 0
    codec = kind.compressor.codec(ROW, x.dtype)
    found = decode(codec, encode(codec, x), x)
    assert found[masked(ROW).logical_not()].tolist() == [0.0] * (ROW.length - ROW.scalars)
    if kind.name not in ("sign row", "sign chunk"):  # who share a scale with another tensor
        assert not found[: ROW.fragments[0].stop].any()
    assert not decode(codec, encode(codec, torch.zeros_like(x)), x).any()


@every_kind
def test_rows_in_half_precision(kind: Kind) -> None:
    x = updates(dtype=torch.bfloat16)
    codec = kind.compressor.codec(ROW, torch.bfloat16)
    expected = kind.obvious(x.float(), ROW)
    found = decode(codec, encode(codec, x), x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=2**-7, atol=0)


@every_kind
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_names_the_tensor_that_is_not_finite(kind: Kind, value: float) -> None:
    x = updates()
    codec = kind.compressor.codec(ROW, x.dtype)
    assert codec.fault(encode(codec, x)) is None
    x[ROW.fragments[3].start + 7] = value
    fault = codec.fault(encode(codec, x))
    assert fault is not None
    assert "kernel" in fault or kind.name == "sign row"


@every_kind
def test_integers_are_refused(kind: Kind) -> None:
    with pytest.raises(UserError, match="int64 cannot be compressed"):
        kind.compressor.codec(ROW, torch.int64)
    with pytest.raises(UserError, match="int64 cannot be compressed"):
        CompressedMean(kind.compressor).reduce(torch.ones(1, 2, 8).long(), None, InProcess(2))


@pytest.mark.parametrize("n", [1, 16, 45, 70])
def test_stochastic_rounding_is_what_the_obvious_way_gives(n: int) -> None:
    x, row = drawn(n, seed=n), Extents.whole(n)
    codec = STOCHASTIC.compressor.codec(row, x.dtype)
    draws = [torch.Generator().manual_seed(n) for _ in range(2)]
    found = decode(codec, encode(codec, x, draws[0]), x)
    torch.testing.assert_close(found, int8_drawn(x, draws[1]), rtol=1e-14, atol=0)


def test_without_a_draw_it_rounds_to_the_nearest() -> None:
    x = updates()
    codec = STOCHASTIC.compressor.codec(ROW, x.dtype)
    found = decode(codec, encode(codec, x), x)
    torch.testing.assert_close(found, STOCHASTIC.obvious(x, ROW), rtol=1e-14, atol=0)


def test_stochastic_rounding_is_unbiased_and_within_a_level() -> None:
    x = updates()
    codec = STOCHASTIC.compressor.codec(ROW, x.dtype)
    found = []
    for seed in range(400):
        draw = torch.Generator().manual_seed(seed)
        found.append(decode(codec, encode(codec, x, draw), x))
    levels = torch.cat([c.abs().max().expand(len(c)) / 127 for c in x.split(16)])
    assert all(bool(((one - x).abs() <= levels * (1 + 1e-12)).all()) for one in found)
    error = torch.stack(found).mean(0) - x
    assert bool(
        (error.abs() <= 5 * 0.5 / 20 * levels).all()
    )  # 5 deviations of at most half a level
    assert not torch.equal(found[0], found[1])
