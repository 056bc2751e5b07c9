"""The page on sharded workers: its code runs in the order of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import localsgd
from tests.distributed.harness import run

TEXT = (Path(__file__).parents[2] / "docs" / "sharded.md").read_text()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[1](self.blocks[0](x))


def page(folder: str) -> bool:
    loss_of = nn.functional.mse_loss
    given: dict[str, Any] = {
        "torch": torch,
        "localsgd": localsgd,
        "model": Model(),
        "loss_of": loss_of,
        "x": torch.full((2, 4), 1.0 + dist.get_rank()),
        "y": torch.ones(2, 4),
        "folder": folder,
    }
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.S):
        exec(block, given)
    loss_of(given["model"](given["x"]), given["y"]).backward()
    given["optimizer"].step()
    given["optimizer"].finish()
    return localsgd.saved(folder)


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    assert run(4, page, str(tmp_path / "save")) == [True] * 4
