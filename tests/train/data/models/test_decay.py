from __future__ import annotations

from torch import nn

from localsgd.train.data.models import no_decay
from localsgd.train.data.models.resnet import ResNet


def test_all_batch_norms_of_resnet20_are_spared_shortcuts_included() -> None:
    net = ResNet(20, 3, 10)
    spared = no_decay(net)
    # 19 after the 3x3 convolutions, 2 in the shortcuts; weight and bias of each.
    assert len(spared) == 2 * 21
    assert {"blocks.3.shortcut.1.weight", "norm.bias"} <= spared
    parameters = dict(net.named_parameters())
    assert spared == {n for n, p in parameters.items() if p.dim() == 1} - {"head.bias"}


def test_type_decides_and_not_name() -> None:
    net = nn.ModuleDict({"bn": nn.Linear(2, 2), "plain": nn.BatchNorm1d(2)})
    assert no_decay(net) == {"plain.weight", "plain.bias"}
    assert no_decay(nn.BatchNorm2d(3)) == {"weight", "bias"}
    assert no_decay(nn.BatchNorm2d(3, affine=False)) == set()
    assert no_decay(nn.LayerNorm(3)) == set()
