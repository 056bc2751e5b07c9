"""The scaled sign on vectors that can be worked out by hand."""

from __future__ import annotations

import pytest
import torch

from localsgd.errors import UserError
from localsgd.reduce import CompressedMean, Sign, spans
from localsgd.reduce.compressor import decode, encode
from localsgd.reduce.extents import Extents
from localsgd.wire import InProcess

ROW = Extents(16, ((0, 3, "a"), (8, 12, "b")))  # type: ignore[arg-type]
X = torch.tensor([1.0, -2, 6] + [0] * 5 + [0, -0.0, 4, -4] + [0] * 4)


def through(compressor: Sign, row: Extents, x: torch.Tensor) -> torch.Tensor:
    codec = compressor.codec(row, x.dtype)
    return decode(codec, encode(codec, x), x)


def sent(x: torch.Tensor, scales) -> list[float]:
    return through(Sign(scales), ROW, x).tolist()


def test_a_scale_for_each_tensor() -> None:
    """The mean of the sizes; both zeros count as positive."""
    assert sent(X, "tensor") == [3, -3, 3] + [0] * 5 + [2, 2, 2, -2] + [0] * 4


def test_a_scale_for_all_leaves_padding_out_of_the_mean() -> None:
    scale = 17 / 7
    expected = [scale, -scale, scale] + [0] * 5 + [scale, scale, scale, -scale] + [0] * 4
    assert sent(X, "row") == pytest.approx(expected)


def test_a_scale_for_each_chunk() -> None:
    assert sent(X, 8) == [3, -3, 3] + [0] * 5 + [2, 2, 2, -2] + [0] * 4


def test_payload() -> None:
    codec = Sign().codec(ROW, torch.float32)
    payload = encode(codec, X)
    assert payload[:8].view(torch.float32).tolist() == [3, 2]
    assert payload[8:].tolist() == [0b101, 0b0111]


def test_a_tensor_that_rests_does_not_move() -> None:
    reducer = CompressedMean(Sign())
    rest = torch.zeros(1, 2, 16)
    assert not reducer.reduce(rest, None, InProcess(2)).wait().any()
    assert not reducer.state()["error"].any()


def test_feedback_by_hand() -> None:
    """v = (3, 1), C(v) = (2, 2), e = (1, -1); then v = (1, -1) + (0, 0) is sent whole."""
    reducer = CompressedMean(Sign())
    first = reducer.reduce(torch.tensor([[[3.0, 1.0]]]), None, InProcess(1)).wait()
    assert first.tolist() == [[2, 2]]
    assert reducer.state()["error"].tolist() == [[[1, -1]]]
    second = reducer.reduce(torch.zeros(1, 1, 2), None, InProcess(1)).wait()
    assert second.tolist() == [[1, -1]]
    assert not reducer.state()["error"].any()


def test_the_mean_is_of_scaled_signs_and_not_of_signs_times_scales() -> None:
    """s^k p^k of (1, 1) and (-3, 3): (1 - 3)/2 and (1 + 3)/2."""
    x = torch.tensor([[[1.0, 1.0], [-3.0, 3.0]]])
    assert CompressedMean(Sign()).reduce(x, None, InProcess(2)).wait().tolist() == [[-1, 2]]


@pytest.mark.parametrize("length", [8, 16, 96, 120])
def test_runs_change_nothing(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Whether tensors go through one by one, in parts, or several at once."""
    row = Extents(200, ((0, 90, "a"), (96, 107, "b"), (112, 200, "c")))  # type: ignore[arg-type]
    x = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[90:96] = x[107:112] = 0
    for scales in ("tensor", "row", 40):
        whole = through(Sign(scales), row, x)  # type: ignore[arg-type]
        with monkeypatch.context() as small:
            small.setattr(spans, "LENGTH", length)
            found = through(Sign(scales), row, x)  # type: ignore[arg-type]
        torch.testing.assert_close(found, whole, rtol=1e-15, atol=0)


@pytest.mark.parametrize("scales", [0, -8, 12, "layer"])
def test_scales_of_other_kinds_are_refused(scales) -> None:
    with pytest.raises(UserError, match=r"scales = .* give tensor, row, or the length of a chunk"):
        Sign(scales)


def test_bits_of_padding_between_tensors_are_0_however_long_a_run_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = encode(Sign().codec(ROW, torch.float32), X)
    monkeypatch.setattr(spans, "LENGTH", 8)
    assert torch.equal(encode(Sign().codec(ROW, torch.float32), X), expected)
