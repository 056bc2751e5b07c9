"""Signs of several payloads are read at once, from tables or by multiplication: each is held to a
loop over blocks and payloads.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from localsgd.reduce import sign
from localsgd.reduce.bits import unpack
from localsgd.reduce.extents import Extent, Extents
from localsgd.reduce.sign import Sign, SignCodec

CASES = {
    "one tensor": [40],
    "one tensor, ragged": [37],
    "tables": [4000, 3000],
    "tables, ragged": [4001, 3003],
    "tables and padding": [4000, 4003, 20_000],
    "short tensors": [8, 3, 16, 1, 5, 24],
    "short tensors before a long one": [8, 3, 16, 300_000],
    "none": [],
}


def codec_of(case: str, dtype: torch.dtype = torch.float64) -> SignCodec:
    """Tensors at multiples of 16, so that some are followed by bytes of padding."""
    start, fragments = 16, []
    for index, length in enumerate(CASES[case]):
        fragments.append(Extent(start, start + length, str(index)))
        start += -(-length // 16) * 16
    return Sign().codec(Extents(start, tuple(fragments)), dtype)


def vectors(codec: SignCodec, count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    x = torch.zeros((count, codec.fragments.length), dtype=dtype)
    draw = torch.Generator().manual_seed(7)
    for start, stop, _ in codec.fragments.fragments:
        x[:, start:stop] = torch.randn((count, stop - start), generator=draw).to(dtype)
    return x


def payloads_of(codec: SignCodec, x: Tensor) -> Tensor:
    payloads = torch.zeros((len(x), codec.size), dtype=torch.uint8)
    for vector, payload in zip(x, payloads, strict=True):
        codec.encode(vector, payload)
    return payloads


def obvious(codec: SignCodec, payloads: Tensor) -> Tensor:
    """The sum, tensor by tensor."""
    total = torch.zeros(codec.fragments.length, dtype=torch.float64)
    for payload in payloads:
        scales = payload[: codec.size - -(-len(total) // 8)].clone().view(torch.float64)
        signs = unpack(payload[8 * len(scales) :], len(total))
        for (start, stop, _), scale in zip(codec.fragments.fragments, scales, strict=True):
            total[start:stop] += torch.where(signs[start:stop], scale, -scale)
    return total


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("room", [64, 1 << 19], ids=["one a pass", "all at once"])
def test_reads_what_a_loop_reads(
    case: str, count: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign, "AT_ONCE", room)
    codec = codec_of(case)
    payloads = payloads_of(codec, vectors(codec, count))
    found = torch.full((codec.fragments.length,), torch.nan, dtype=torch.float64)
    codec.read(payloads, found)
    assert torch.equal(found, obvious(codec, payloads))


@pytest.mark.parametrize("case", CASES)
def test_adds_what_a_loop_adds(case: str) -> None:
    codec = codec_of(case)
    payloads = payloads_of(codec, vectors(codec, 1))
    before = torch.randn(codec.fragments.length, dtype=torch.float64)
    after = before.clone()
    codec.add(payloads[0], after, -0.5)
    assert torch.equal(after, before - 0.5 * obvious(codec, payloads))


def test_tables_and_multiplication_are_both_used() -> None:
    """The cases above would miss one of them otherwise."""
    ways = {case: [run._from_tables for run in codec_of(case)._runs] for case in CASES}
    assert ways["tables and padding"] == [True]
    assert ways["short tensors"] == [False]
