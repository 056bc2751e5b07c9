"""The page on saving: its blocks run in two processes, and what it says goes wrong does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import localsgd
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, batch, nesterov, net, values

PAGE = (Path(__file__).parents[2] / "docs" / "saving.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
TEXTS = re.findall(r"```text\n(.*?)```", PAGE, re.S)

pytestmark = pytest.mark.timeout(120)


def given(folder: str, epochs: int) -> dict[str, Any]:
    """What the page leaves to the reader: two batches an epoch."""
    model, rank = net(), dist.get_rank()
    return {
        "localsgd": localsgd,
        "torch": torch,
        "folder": folder,
        "epochs": epochs,
        "rank": rank,
        "model": model,
        "optimizer": localsgd.LocalSGD(nesterov(model), model, local_steps=3),
        "loss_function": torch.nn.functional.mse_loss,
        "batches_of": lambda epoch: [batch(rank, 2 * epoch), batch(rank, 2 * epoch + 1)],
        "evaluate": lambda model: None,
    }


def the_loop(folder: str) -> None:
    loop, *_ = BLOCKS
    whole = given(f"{folder}/whole", 4)
    exec(loop, whole)
    for epochs in (2, 4):
        parts = given(f"{folder}/parts", epochs)
        exec(loop, parts)
    assert parts["begun"] == 2
    assert_bits(values(parts["model"]), values(whole["model"]))


def right_and_wrong(folder: str, index: int) -> str:
    """A wrong block, while the others go on; a right one gives nothing."""
    names = given(folder, 1)
    for step in range(4):
        names["model"](batch(names["rank"], step)[0]).sum().backward()
        names["optimizer"].step()
    block = BLOCKS[index]
    if "# wrong" not in block:
        exec(block, names)
        return ""

    def wrong() -> None:
        exec(block, names)
        for _ in range(2):
            names["optimizer"].step()

    with pytest.raises(localsgd.UserError) as caught:
        wrong()
    return f"UserError: {caught.value}"


def test_the_loop_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    run(2, the_loop, str(tmp_path))


def test_right_and_wrong(tmp_path: Path) -> None:
    wrong = [index for index, block in enumerate(BLOCKS) if "# wrong" in block]
    assert len(wrong) == len(TEXTS) == 2
    for index in range(1, len(BLOCKS)):
        expected = TEXTS[wrong.index(index)].strip() if index in wrong else ""
        for said in run(2, right_and_wrong, str(tmp_path / "save"), index):
            assert said.startswith(expected)
