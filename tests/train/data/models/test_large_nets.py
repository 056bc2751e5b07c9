"""The shapes of the paper's larger networks, on a device where nothing is computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from localsgd.train.data.models.densenet import DenseNet
from localsgd.train.data.models.imagenet_resnet import STAGES, ImageNetResNet
from localsgd.train.data.models.wide_resnet import WideResNet

NETS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    # How to build it, its depth, the side of its images.
    "densenet40-12": (lambda: DenseNet(40, 12, 3, 10), 40, 32),
    "wrn28-10": (lambda: WideResNet(28, 10, 3, 10), 28, 32),
    "imagenet-resnet50": (lambda: ImageNetResNet(STAGES[50], 3, 1000), 50, 224),
}


@pytest.mark.parametrize("name", NETS)
def test_what_the_depth_in_a_name_counts(name: str) -> None:
    """Layers on the longest way; of wide networks all convolutions, three shortcuts included."""
    build, depth, _ = NETS[name]
    with torch.device("meta"):
        parts = dict(build().named_modules())
    convolutions = {name for name, part in parts.items() if isinstance(part, nn.Conv2d)}
    straight = {name for name in convolutions if "shortcut" not in name}
    assert depth == (len(convolutions) if name == "wrn28-10" else len(straight) + 1)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        # What the first convolution, then each stage or block gives: channels and side.
        ("densenet40-12", [(24, 32), (168, 32), (312, 16), (456, 8)]),
        ("wrn28-10", [(16, 32), (160, 32), (320, 16), (640, 8)]),
        ("imagenet-resnet50", [(64, 112), (256, 56), (512, 28), (1024, 14), (2048, 7)]),
    ],
)
def test_images_shrink_and_channels_grow(name: str, shapes: list[tuple[int, int]]) -> None:
    build, _, side = NETS[name]
    seen: list[tuple[int, int]] = []
    with torch.device("meta"):
        net = build()
        first = next(part for part in net.modules() if isinstance(part, nn.Conv2d))
        body = net.body if isinstance(net, DenseNet) else net.get_submodule("blocks")
        for part in (first, *body.children()):
            part.register_forward_hook(lambda _, __, y: seen.append((y.shape[1], y.shape[2])))
        assert net(torch.empty(2, 3, side, side)).shape == (2, 1000 if side == 224 else 10)
    assert set(shapes) <= set(seen)
    assert seen[-1] == shapes[-1]
    assert sorted({side for _, side in seen}) == sorted({side for _, side in shapes})


def test_a_dense_layer_passes_on_what_it_read() -> None:
    from localsgd.train.data.models.densenet import Layer

    x = torch.randn(2, 3, 4, 4)
    y = Layer(3, 5).eval()(x.clone())
    assert y.shape == (2, 8, 4, 4)
    assert torch.equal(y[:, :3], x)


def test_blocks_with_silent_convolutions_pass_their_shortcut() -> None:
    from localsgd.train.data.models.imagenet_resnet import Bottleneck
    from localsgd.train.data.models.wide_resnet import Block

    x = torch.randn(2, 4, 6, 6)
    same, wider = Block(4, 4, 1).eval(), Block(4, 8, 2).eval()
    for block in (same, wider):
        nn.init.zeros_(block.conv2.weight)
    assert torch.equal(same(x.clone()), x)  # as it came, negative values included
    assert wider.shortcut is not None
    assert torch.equal(wider(x), wider.shortcut(torch.relu(wider.norm1(x))))
    for inside, stride in ((8, 1), (4, 2)):
        block = Bottleneck(inside, 2, stride).eval()
        nn.init.zeros_(block.norm3.weight)
        x = torch.randn(2, inside, 6, 6)
        assert torch.equal(block(x), torch.relu(block.shortcut(x)))
