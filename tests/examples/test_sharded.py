"""The example with sharded workers learns, and all ranks end with the same judgement."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch

from tests.distributed.harness import run

PROGRAM = str(Path(__file__).parents[2] / "examples" / "sharded.py")


def learnt(out: Path) -> list[float]:
    program = runpy.run_path(PROGRAM)
    text = program["text_of"](None)
    return [program["train"](text, steps, 2, out) for steps in (1, 12)]


def test_it_learns(tmp_path: Path) -> None:
    out = tmp_path / "made" / "model.pt"
    found = run(4, learnt, out)
    assert found == [found[0]] * 4
    first, last = found[0]
    assert last < first - 0.5
    program = runpy.run_path(PROGRAM)
    program["GPT"]().load_state_dict(torch.load(out, weights_only=True))
