from __future__ import annotations

import torch
from torch import nn

from localsgd.train.data.models.resnet import Block, ResNet, Thinned


def test_depth_counts_convolutions_and_the_last_layer() -> None:
    for depth in (8, 20, 56):
        net = ResNet(depth, 3, 10)
        layers = [
            m
            for n, m in net.named_modules()
            if isinstance(m, nn.Conv2d | nn.Linear) and "shortcut" not in n
        ]
        assert len(layers) == depth


def test_multiply_adds_are_the_papers_41_million() -> None:
    """Lin et al. (2020), table of scaling ratios: 0.041 billion for ResNet-20 on CIFAR-10."""
    work = 0

    def note(module: nn.Conv2d | nn.Linear, _: object, output: torch.Tensor) -> None:
        nonlocal work
        work += output[0].numel() * module.weight[0].numel()

    net = ResNet(20, 3, 10).eval()
    for part in net.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            part.register_forward_hook(note)
    net(torch.zeros(1, 3, 32, 32))
    assert round(work / 1e9, 3) == 0.041


def test_the_identity_shortcut_thins_and_fills_with_zeros() -> None:
    x = torch.randn(2, 3, 5, 6)
    y = Thinned(2, 4)(x)
    assert y.shape == (2, 7, 3, 3)
    for row in range(3):
        for column in range(3):
            assert torch.equal(y[:, :3, row, column], x[:, :, 2 * row, 2 * column])
    assert (y[:, 3:] == 0).all()


def test_a_block_with_silent_convolutions_passes_its_shortcut() -> None:
    x = torch.randn(2, 4, 6, 6).abs()
    for identity in (False, True):
        same = Block(4, 4, identity=identity)
        nn.init.zeros_(same.norm2.weight)
        assert torch.equal(same(x), x)
        wider = Block(4, 8, identity=identity)
        nn.init.zeros_(wider.norm2.weight)
        assert torch.equal(wider(x), torch.relu(wider.shortcut(x)))


def test_only_the_first_blocks_of_later_stages_have_a_projection() -> None:
    net = ResNet(20, 3, 10)
    projected = [i for i, b in enumerate(net.blocks) if isinstance(b.shortcut, nn.Sequential)]
    assert projected == [3, 6]
