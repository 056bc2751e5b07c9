from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from localsgd.train.data.models.initial import initialise
from localsgd.train.data.models.mlp import mlp
from localsgd.train.data.models.resnet import ResNet


def test_convolutions_have_variance_2_over_fan_out() -> None:
    torch.manual_seed(0)
    net = ResNet(20, 3, 10)
    initialise(net)
    for part in net.modules():
        if isinstance(part, nn.Conv2d):
            expected = 2 / (part.out_channels * math.prod(part.kernel_size))
            # The variance of n normal values has a relative deviation of sqrt(2 / n).
            allowed = 5 * math.sqrt(2 / part.weight.numel())
            assert part.weight.var().item() == pytest.approx(expected, rel=allowed)
            assert part.bias is None


def test_the_last_layer_is_small_and_without_bias() -> None:
    torch.manual_seed(0)
    net = ResNet(8, 3, 100)
    initialise(net)
    assert net.head.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert (net.head.bias == 0).all()


def test_the_last_layer_can_stay_as_pytorch_made_it() -> None:
    torch.manual_seed(0)
    net = ResNet(8, 3, 10)
    before = net.head.weight.clone(), net.head.bias.clone()
    initialise(net, head="torch")
    assert torch.equal(net.head.weight, before[0])
    assert torch.equal(net.head.bias, before[1])


def test_batch_norm_starts_as_the_identity() -> None:
    net = ResNet(8, 3, 10)
    with torch.no_grad():
        for part in net.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.weight.fill_(3)
                part.get_buffer("running_mean").fill_(3)
    initialise(net)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            assert (part.weight == 1).all()
            assert (part.bias == 0).all()
            assert (part.get_buffer("running_mean") == 0).all()


def test_hidden_linear_layers_are_like_convolutions() -> None:
    torch.manual_seed(0)
    net = mlp(100, 10, 400)
    initialise(net)
    weight, bias, last, _ = net.parameters()
    assert weight.var().item() == pytest.approx(2 / 400, rel=0.05)
    assert (bias == 0).all()
    assert last.std().item() == pytest.approx(0.01, rel=0.1)
