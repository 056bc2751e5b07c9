"""The ordered mean adds members in their order, whoever owns the chunk, and then divides."""

from __future__ import annotations

import torch

from localsgd.collective import InProcess, Metered
from localsgd.collective.metered import Entry
from localsgd.reduce import OrderedMean


def test_adds_in_the_order_of_the_members() -> None:
    x = torch.tensor([[1e8], [1.0], [-1e8], [3.0]]).repeat(1, 5).unsqueeze(0)
    mean = OrderedMean().reduce(x.clone(), None, InProcess(4)).wait()
    one_by_one = ((x[:, 0] + x[:, 1]) + x[:, 2]) + x[:, 3]
    assert torch.equal(mean, one_by_one / 4)
    assert mean[0, 0] == 0.75  # 1e8 + 1 is 1e8 in float32


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
