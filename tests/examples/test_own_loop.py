"""The program that is shown trains, and goes on after it was cut off with the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).parents[2] / "examples" / "own_loop.py"
SECONDS = 200


def started(out: Path, epochs: int) -> str:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    ended = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", PROGRAM, "--epochs", str(epochs), "--out", out],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.timeout(4 * SECONDS)
def test_it_learns_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = started(tmp_path / "whole", 3)
    assert float(whole.split()[-1]) > 0.8
    # An epoch has 46 steps, so that each ends in the middle of a round of 8.
    assert "epoch 2" in started(tmp_path / "parts", 2)
    again = started(tmp_path / "parts", 3)
    assert "epoch 2" not in again
    assert again.splitlines()[-1] == whole.splitlines()[-1]
    first, second = (
        torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("whole", "parts")
    )
    assert all(torch.equal(first[key], second[key]) for key in first)
