"""The ordered mean adds members in their order, whoever owns the chunk, and then divides."""

from __future__ import annotations

import pytest
import torch

from localsgd.reduce import ExactMean, OrderedMean, Reducer, ordered
from localsgd.wire import InProcess, Metered
from localsgd.wire.metered import Entry


def test_float32_is_summed_in_float64_in_the_order_of_the_members() -> None:
    x = torch.tensor([[1e8], [1.0], [-1e8], [3.0]]).repeat(1, 5).unsqueeze(0)
    mean = OrderedMean().reduce(x.clone(), None, InProcess(4)).wait()
    wide = x.double()
    one_by_one = ((wide[:, 0] + wide[:, 1]) + wide[:, 2]) + wide[:, 3]
    assert torch.equal(mean, (one_by_one / 4).float())
    assert mean[0, 0] == 1.0  # in float32, 1e8 + 1 is 1e8 and the mean 0.75


def test_float64_is_summed_as_differences_from_the_first_member() -> None:
    x = torch.tensor([[1.0], [1e16], [2.0], [-1e16]], dtype=torch.float64).unsqueeze(0)
    mean = OrderedMean().reduce(x.clone(), None, InProcess(4)).wait()
    first = x[:, 0]
    differences = ((x[:, 1] - first) + (x[:, 2] - first)) + (x[:, 3] - first)
    assert torch.equal(mean, differences / 4 + first)
    assert mean.item() != ((((1.0 + 1e16) + 2.0) - 1e16) / 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_ordered_mean_of_equal_ones_is_theirs(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    limits = torch.finfo(dtype)
    edges = torch.tensor([limits.max / 128, limits.tiny, 0.0], dtype=dtype)
    row = torch.cat([torch.randn(501, dtype=torch.float64, generator=draw).to(dtype), edges])
    for members in [*range(1, 20), 33, 64, 100]:
        x = row.repeat(1, members, 1)
        assert torch.equal(OrderedMean().reduce(x, None, InProcess(members)).wait()[0], row)


def test_chunks_that_do_not_come_out_even_lose_nothing() -> None:
    x = torch.arange(21.0, dtype=torch.float64).view(1, 3, 7)
    mean = OrderedMean().reduce(x.clone(), None, InProcess(3)).wait()
    assert torch.equal(mean, x.mean(1))


def test_sends_what_a_ring_sends() -> None:
    """(M - 1)/M of the update away and, as 1/M to each, back."""
    entry = Entry()
    x = torch.zeros(1, 4, 8, dtype=torch.float64)
    OrderedMean().reduce(x, None, Metered(InProcess(4), entry)).wait()
    assert entry.calls == 2
    assert entry.bytes == (3 * 2 + 2) * 8


HALF = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("make", [ExactMean, OrderedMean])
def test_the_mean_of_equal_ones_in_half_precision_is_theirs(
    make: type[Reducer], dtype: torch.dtype
) -> None:
    """Any number will do, the largest too, whose sum the type could not hold."""
    draw = torch.Generator().manual_seed(1)
    row = torch.cat([torch.randn(500, generator=draw), torch.tensor([6e4, -6e4, 1e-7])]).to(dtype)
    for members in [*range(1, 20), 33, 64, 100]:
        x = row.repeat(1, members, 1)
        assert torch.equal(make().reduce(x, None, InProcess(members)).wait()[0], row), members
        shares = torch.arange(1.0, members + 1).unsqueeze(0)
        x = row.repeat(1, members, 1)
        mean = make().reduce(x, shares / shares.sum(), InProcess(members)).wait()[0]
        assert torch.equal(mean, row), members


@pytest.mark.parametrize("piece", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("weighted", [False, True])
def test_half_precision_is_summed_in_float32_and_rounded_once(
    monkeypatch: pytest.MonkeyPatch, piece: int, weighted: bool
) -> None:
    """The mean is made in pieces of any length, in the first member's memory."""
    monkeypatch.setattr(ordered, "PIECE", piece)
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, 50, generator=draw).bfloat16()
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.5, 0.375]]) if weighted else None
    wide = x.float() * (1 if weights is None else weights.unsqueeze(-1))
    total = (wide[:, 0] + wide[:, 1]) + wide[:, 2]
    expected = (total if weighted else total / 3).bfloat16()
    mean = OrderedMean().reduce(x, weights, InProcess(3)).wait()
    assert torch.equal(mean, expected)
    assert mean.data_ptr() == x.data_ptr()


def test_half_precision_crosses_as_it_is() -> None:
    entry = Entry()
    x = torch.zeros(1, 4, 8, dtype=torch.bfloat16)
    ExactMean().reduce(x, None, Metered(InProcess(4), entry)).wait()
    assert (entry.calls, entry.bytes, entry.arrived) == (2, (3 * 2 + 2) * 2, 2 * 3 * 2 * 2)
