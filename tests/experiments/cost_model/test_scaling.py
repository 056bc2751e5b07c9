"""Parameters and operations of the paper's networks, counted by the package and by others."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from experiments.cost_model import published
from experiments.cost_model.scaling import size_of
from experiments.cost_model.tables import NETWORKS, counted
from localsgd.train.data.models.resnet import ResNet


@pytest.mark.parametrize("network", NETWORKS, ids=" ".join)
def test_networks_are_the_paper_s(network) -> None:
    """Figures that the paper rounds, from networks whose operations PyTorch counts as we do."""
    size = counted(network)
    build, shape = NETWORKS[network]
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        build().eval()(torch.empty(1, *shape))
    # PyTorch has two operations for each multiply-add.
    assert counter.get_total_flops() == 2 * size.multiplications
    millions, billions, ratio = published.SCALING[network]
    if network.model == "ResNet-50":
        # It alone is in floating-point operations, and of 25.56 million parameters it says 25.00.
        assert size.parameters == 25_557_032
        assert 2 * size.multiplications / 1e9 == pytest.approx(billions, rel=0.07)
        assert size.ratio == pytest.approx(160, abs=0.5)
    else:
        assert abs(size.parameters / 1e6 - millions) <= 0.0101
        assert abs(size.multiplications / 1e9 - billions) <= 0.0101
        assert size.ratio == pytest.approx(ratio, rel=0.04)
    assert ratio == pytest.approx(1000 * billions / millions, abs=0.005)


def test_the_paper_s_resnet_by_hand() -> None:
    """0.27 million parameters and 0.041 billion operations, and each of them."""
    size = size_of(ResNet(20, 3, 10), (3, 32, 32))
    stem = 1024 * 16 * 27
    same = [pixels * width * width * 9 for pixels, width in ((1024, 16), (256, 32), (64, 64))]
    down = [pixels * width * (width // 2) * (9 + 1) for pixels, width in ((256, 32), (64, 64))]
    assert size.multiplications == stem + 6 * same[0] + 5 * (same[1] + same[2]) + sum(down) + 640
    assert size.parameters == 272_474
    assert size.ratio == size.multiplications / size.parameters


def test_a_model_is_left_as_it_is() -> None:
    model = ResNet(8, 3, 10).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    size_of(model, (3, 32, 32))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
