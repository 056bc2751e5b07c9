from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from localsgd.train.data import tasks
from localsgd.train.data.models import build, count_operations
from localsgd.train.data.models.lstm import LSTM


def test_by_hand() -> None:
    convolution = nn.Conv2d(3, 5, 3, stride=2, padding=1, groups=1)
    assert count_operations(convolution, torch.zeros(1, 3, 8, 8)) == 4 * 4 * 5 * 3 * 9
    assert count_operations(nn.Conv2d(6, 4, 1, groups=2), torch.zeros(1, 6, 2, 2)) == 4 * 4 * 3
    assert count_operations(nn.Linear(7, 3), torch.zeros(1, 7)) == 21
    net = nn.Sequential(nn.Linear(7, 3), nn.ReLU(), nn.Linear(3, 2, bias=False))
    assert count_operations(net, torch.zeros(1, 7)) == 21 + 6


@pytest.mark.parametrize("tied", [False, True])
def test_an_lstm_by_hand(tied: bool) -> None:
    per_token = 2 * 4 * 6 * (6 + 6) + 6 * 11  # 2 layers of 4 gates, each from input and output
    net = LSTM(11, layers=2, width=6, tied=tied)
    assert count_operations(net, torch.zeros(1, 5, dtype=torch.int64)) == 5 * per_token


def test_the_model_is_left_as_it_was() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Dropout())
    net[2].eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    count_operations(net, torch.ones(1, 1, 2, 2))
    assert [part.training for part in net] == [True, True, False]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(part._forward_hooks for part in net)


# Lin et al. (2020), table of scaling ratios: parameters in millions, operations in thousands of
# millions, and their ratio. For ResNet-50 see below.
TABLE = [
    ("resnet20", "cifar10", 0.27, 0.041, 151.85),
    ("densenet40-12", "cifar10", 1.06, 0.28, 264.15),
    ("densenet40-12", "cifar100", 1.10, 0.28, 254.55),
    ("wrn28-10", "cifar10", 36.48, 5.24, 143.64),
    ("wrn28-10", "cifar100", 36.54, 5.24, 143.40),
]


def sizes(model: str, task: str) -> tuple[int, int]:
    """Parameters, and operations for one image, found where nothing is computed."""
    card = tasks.card(task)
    shape: Any = SimpleNamespace(card=card, input_shape=card.input_shape, classes=card.classes)
    with torch.device("meta"):
        net = build(model, shape, 0)
        operations = count_operations(net, torch.empty(1, *card.input_shape))
    return sum(p.numel() for p in net.parameters()), operations


@pytest.mark.parametrize(("model", "task", "parameters", "operations", "ratio"), TABLE)
def test_the_papers_table(
    model: str, task: str, parameters: float, operations: float, ratio: float
) -> None:
    found, counted = sizes(model, task)
    assert round(found / 1e6, 2) == parameters
    assert round(counted / 1e9, len(str(operations)) - 2) == operations
    assert round(1e3 * operations / parameters, 2) == ratio


def test_resnet50_has_more_parameters_and_half_the_operations_of_the_table() -> None:
    """25.00 million and 7.7 are in the table: the latter counts multiplying and adding apart, of
    the variant with stride at the first convolution of a block (3.86). The ratio is 160, not 308.
    """
    found, counted = sizes("imagenet-resnet50", "imagenet")
    assert (found, counted) == (25_557_032, 4_089_184_256)
    assert round(counted / found, 1) == 160.0
