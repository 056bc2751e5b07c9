"""The examples as a user starts them, killed as a machine that loses power, and started again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integrations.frameworks import EXAMPLES
from tests.integrations.test_examples import EPOCHS, Example, assert_ended_by_hand, example

__all__ = ["example"]

SECONDS = 240


def written(program: str, folder: Path, out: Path) -> Path:
    """A program that runs the example for a few epochs."""
    path = folder / "start.py"
    path.write_text(
        f"import pathlib, sys, torch\n"
        f"sys.path.insert(0, {str(EXAMPLES)!r})\n"
        f"from {program} import main\n"
        f"main(out=pathlib.Path({str(out)!r}), epochs={EPOCHS}, dtype=torch.float64)\n"
    )
    return path


def started(program: Path) -> subprocess.Popen:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.Popen(
        [*torchrun, "--nproc-per-node=2", str(program)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def kill(program: subprocess.Popen) -> None:
    """With its processes, which torchrun puts into sessions of their own."""
    psutil = pytest.importorskip("psutil")
    for process in [*psutil.Process(program.pid).children(recursive=True), program]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    program.communicate()


def complete(out: Path, framework: str) -> list[Path]:
    """Folders of checkpoints that can be gone on from."""
    if framework != "transformers":
        return [path.parent for path in out.glob("**/worker-1.pt")]
    found = [path.parents[1] for path in out.glob("checkpoint-*/localsgd/worker-1.pt")]
    return [folder for folder in found if (folder / "trainer_state.json").exists()]


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS)
def test_it_ends_with_the_same_bits(tmp_path: Path, example: Example) -> None:
    out = tmp_path / "run"
    program = written(example.program, tmp_path, out)
    first = started(program)
    deadline = time.monotonic() + SECONDS
    while not complete(out, example.framework):
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.02)
    kill(first)
    for folder in out.glob("checkpoint-*"):  # Trainer takes up the newest, also half of one.
        if folder not in complete(out, example.framework):
            shutil.rmtree(folder)
    second = started(program)
    printed, _ = second.communicate(timeout=SECONDS)
    assert second.returncode == 0, printed.decode()
    assert_ended_by_hand(example, out, accumulate=1)
