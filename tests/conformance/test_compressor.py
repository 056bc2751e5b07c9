"""What every compressor promises alone: its payloads and what they stand for.

Shapes: n scalars · c bytes of a payload.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from localsgd.errors import UserError
from localsgd.reduce import CompressedMean, Compressor
from localsgd.reduce.compressor import decode, encode
from localsgd.reduce.extents import Extents
from localsgd.testing.compressor import CHECKS
from localsgd.wire import InProcess
from tests.conformance.compressors import (
    FLOAT,
    KINDS,
    ROW,
    STOCHASTIC,
    Kind,
    drawn,
    every_dtype,
    every_kind,
    int8_drawn,
    updates,
)


@pytest.mark.parametrize("kind", [*KINDS, STOCHASTIC], ids=lambda kind: kind.name)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(kind: Kind, check: Callable[[Compressor], None]) -> None:
    check(kind.compressor)


@every_kind
def test_names_the_tensor_that_is_not_finite(kind: Kind) -> None:
    x = updates()
    codec = kind.compressor.codec(ROW, x.dtype)
    x[ROW.fragments[3].start + 7] = math.nan
    assert "kernel" in (codec.fault(encode(codec, x)) or "") or kind.name == "sign row"


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
def test_nothing_stays_nothing(kind: Kind) -> None:
    """A tensor that is never trained does not move."""
    x = updates()
    x[: ROW.fragments[0].stop] = 0
    codec = kind.compressor.codec(ROW, x.dtype)
    found = decode(codec, encode(codec, x), x)
    if kind.name not in ("sign row", "sign chunk"):  # who share a scale with another tensor
        assert not found[: ROW.fragments[0].stop].any()


@every_kind
def test_rows_in_half_precision(kind: Kind) -> None:
    x = updates(dtype=torch.bfloat16)
    codec = kind.compressor.codec(ROW, torch.bfloat16)
    expected = kind.obvious(x.float(), ROW)
    found = decode(codec, encode(codec, x), x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=2**-7, atol=0)


@every_kind
def test_integers_are_refused(kind: Kind) -> None:
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
