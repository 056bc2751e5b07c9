"""Parameters and operations of the paper's networks, counted by the package and by others; and the
page of the documentation.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from experiments.cost_model import page
from experiments.registry import entry, network, size_of
from localsgd.train.data import tasks

DOCS = Path(__file__).parents[2] / "docs" / "cost-model.md"


@pytest.mark.parametrize(("title", "table"), page().items())
def test_the_documentation_has_each_table(title: str, table: str) -> None:
    assert table in DOCS.read_text(), (
        f"{title}: print it anew with python -m experiments.cost_model"
    )


@pytest.mark.parametrize(
    "paper", entry("scaling-ratio").values, ids=lambda row: f"{row['model']} {row['task']}"
)
def test_networks_are_the_paper_s(paper: dict) -> None:
    """Figures that the paper rounds, from networks whose operations PyTorch counts as we do."""
    model, task = paper["model"], paper["task"]
    size = size_of(model, task)
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(model, task).eval()(torch.empty(1, *tasks.card(task).input_shape))
    # PyTorch has two operations for each multiply-add.
    assert counter.get_total_flops() == 2 * size.multiplications
    millions, billions, ratio = paper["parameters"], paper["operations"], paper["ratio"]
    if model == "imagenet-resnet50":
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
    size = size_of("resnet20", "cifar10")
    stem = 1024 * 16 * 27
    same = [pixels * width * width * 9 for pixels, width in ((1024, 16), (256, 32), (64, 64))]
    down = [pixels * width * (width // 2) * (9 + 1) for pixels, width in ((256, 32), (64, 64))]
    assert size.multiplications == stem + 6 * same[0] + 5 * (same[1] + same[2]) + sum(down) + 640
    assert size.parameters == 272_474
    assert size.ratio == size.multiplications / size.parameters
