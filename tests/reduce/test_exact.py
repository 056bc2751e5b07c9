"""The exact mean works where the members lie, and divides once."""

from __future__ import annotations

import torch

from localsgd.reduce import ExactMean
from localsgd.wire import InProcess


def test_lies_in_the_first_member() -> None:
    x = torch.arange(12.0).view(1, 3, 4)
    mean = ExactMean().reduce(x, None, InProcess(3)).wait()
    assert mean.data_ptr() == x.data_ptr()
    assert mean.tolist() == [[4.0, 5.0, 6.0, 7.0]]


def test_divides_once_and_at_the_end() -> None:
    x = torch.tensor([0.1, 0.1, 0.1], dtype=torch.float64).view(1, 3, 1)
    mean = ExactMean().reduce(x.clone(), None, InProcess(3)).wait()
    assert mean.item() == ((0.1 + 0.1) + 0.1) / 3
    assert mean.item() != 0.1 / 3 + 0.1 / 3 + 0.1 / 3


def test_one_member_is_its_own_mean() -> None:
    x = torch.tensor([[[0.1, 0.2]]])
    assert torch.equal(ExactMean().reduce(x, None, InProcess(1)).wait(), x[:, 0])
