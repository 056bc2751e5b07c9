"""The code of the pages on frameworks runs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.distributed.harness import Crew
from tests.integrations.frameworks import SECONDS, example, launched

DOCS = Path(__file__).parents[2] / "docs"


def code_of(page: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.S)
    here = 'accelerator="cpu", devices=2, max_epochs=1, default_root_dir=out, logger=False'
    return blocks[0].replace("devices=4, num_nodes=2, max_epochs=10", here)


def names_of(page: str, out: str) -> dict[str, Any]:
    """What the code of a page takes for granted."""
    if page == "transformers":
        module = example("with_trainer")
        data = module.data(torch.float32)
        return {"model": module.Net(), "train": data[:96], "test": data[-48:], "out": out}
    if page == "lightning":
        module = example("with_lightning")
        train, test = module.loaders(torch.float32)
        return {"module": module.Digits(), "train": train, "test": test, "out": out}
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.ones(32, 2), torch.ones(32, 1))
    return {
        "model": model,
        "optimizer": optimizer,
        "loader": DataLoader(data),
        "scheduler": torch.optim.lr_scheduler.ConstantLR(optimizer),
        "loss_function": nn.functional.mse_loss,
        "evaluate": lambda model: model(torch.ones(1, 2)),
    }


def execute(page: str, out: str) -> int:
    """Runs the page's code; the number of its steps."""
    with launched():
        names = names_of(page, out)
        exec(compile(code_of(page), f"{page}.md", "exec"), names)
    if page == "accelerate":
        return names["optimizer"].optimizer.steps
    trainer = names["trainer"]
    return (trainer if page == "transformers" else trainer.strategy).local_sgd.steps


@pytest.mark.parametrize(
    ("page", "steps"), [("accelerate", 4), ("transformers", 18), ("lightning", 30)]
)
def test_the_code_of_a_page_runs(crew: Crew, tmp_path: Path, page: str, steps: int) -> None:
    if importlib.util.find_spec(page) is None:
        pytest.skip(f"needs localsgd[{page}]")
    found = crew.run(execute, (page, str(tmp_path)), SECONDS)
    assert found == [steps, steps]
