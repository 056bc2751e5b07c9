"""The exact mean works where the members lie, and divides once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

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


def _of_equal(row: Tensor, members: int) -> Tensor:
    x = row.expand(1, members, -1).clone()
    return ExactMean().reduce(x, None, InProcess(members)).wait()[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_of_equal_members_is_theirs_or_soon_stays(dtype: torch.dtype) -> None:
    row = torch.randn(1000, dtype=torch.float64).to(dtype)
    for members in (1, 2, 4):
        assert torch.equal(_of_equal(row, members), row)
    for members, epsilons in ((3, 0.75), (5, 0.625), (6, 1.0)):
        mean = _of_equal(row, members)
        assert bool(((mean - row).abs() <= epsilons * torch.finfo(dtype).eps * row.abs()).all())
        assert torch.equal(_of_equal(mean, members), mean)


def test_one_member_is_its_own_mean() -> None:
    x = torch.tensor([[[0.1, 0.2]]])
    assert torch.equal(ExactMean().reduce(x, None, InProcess(1)).wait(), x[:, 0])
