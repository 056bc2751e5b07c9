"""The page on LocalSGD: its loop runs, and what it prints is what comes out."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import localsgd
from localsgd.optimizer import export, local_sgd, save_load

TEXT = (Path(__file__).parents[2] / "docs" / "optimizer.md").read_text()


def test_examples_in_docstrings_run() -> None:
    for module in (localsgd, local_sgd, export, save_load):
        assert doctest.testmod(module).failed == 0


def test_examples_on_the_page_run() -> None:
    examples = doctest.DocTestParser().get_doctest(TEXT.replace("```", ""), {}, "page", None, 0)
    assert examples.examples
    assert doctest.DocTestRunner().run(examples).failed == 0


def test_the_loop_of_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = re.findall(r"```python\n(.*?)```", TEXT, re.S)[0]
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda: None)
    model = torch.nn.Linear(2, 1)
    before = model.weight.detach().clone()
    data = TensorDataset(torch.ones(4, 2), torch.ones(4, 1))
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    given: dict[str, Any] = {
        "build_model": lambda: model,
        "device": "cpu",
        "loader": DataLoader(data, sampler=sampler),
        "loss_function": torch.nn.functional.mse_loss,
    }
    exec(loop, given)
    assert given["optimizer"].steps == 300 * 2
    assert not torch.equal(model.weight, before)


def test_every_argument_is_on_the_page() -> None:
    for argument in (
        "local_steps",
        "topology",
        "average",
        "reducer",
        "outer",
        "start",
        "timeout",
    ):
        assert f"`{argument}" in TEXT or f"{argument}=" in TEXT
