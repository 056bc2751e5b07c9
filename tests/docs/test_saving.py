"""The page on saving: its blocks run in two processes, and what it says goes wrong does."""

from __future__ import annotations

import contextlib
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


class Batches(list):
    """Ends the program at a batch, counted from 1."""

    cut: int | None = None

    def __iter__(self) -> Any:
        for number, one in enumerate(super().__iter__(), 1):
            if number == self.cut:
                raise KeyboardInterrupt
            yield one


def inside_an_epoch(folder: str, cut: int | None) -> dict[str, Any]:
    """Three epochs of five batches, in pairs; cut off in the second one."""
    rank = dist.get_rank()
    losses = iter([3.0, 2.0 + rank, 2.6])  # the third is more than the second on rank 0 alone

    def batches_of(epoch: int) -> Batches:
        batches = Batches(batch(rank, 5 * epoch + number) for number in range(5))
        batches.cut = cut if epoch == 1 else None
        return batches

    names = given(folder, 9) | {
        "accumulate": 2,
        "save_every": 3,
        "batches_of": batches_of,
        "evaluate": lambda model: torch.tensor(next(losses)),
    }
    if localsgd.saved(folder):
        next(losses)
    with contextlib.suppress(KeyboardInterrupt):
        exec(BLOCKS[1], names)
    return names


def cut_inside_an_epoch(folder: str) -> int:
    whole = inside_an_epoch(f"{folder}/whole", None)
    for cut in (5, None):
        parts = inside_an_epoch(f"{folder}/parts", cut)
    assert_bits(values(parts["model"]), values(whole["model"]))
    return parts["optimizer"].steps


def the_loop(folder: str) -> None:
    loop = BLOCKS[0]
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


def test_a_cut_inside_an_epoch_and_a_stop_that_all_make(tmp_path: Path) -> None:
    """Three steps an epoch, the last one of the batch that is left over."""
    assert run(2, cut_inside_an_epoch, str(tmp_path)) == [9, 9]


def test_right_and_wrong(tmp_path: Path) -> None:
    wrong = [index for index, block in enumerate(BLOCKS) if "# wrong" in block]
    assert len(wrong) == len(TEXTS) == 2
    for index in range(2, len(BLOCKS)):
        expected = TEXTS[wrong.index(index)].strip().removesuffix(" ...") if index in wrong else ""
        for said in run(2, right_and_wrong, str(tmp_path / "save"), index):
            assert said.startswith(expected)
