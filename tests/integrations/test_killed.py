"""The examples as a user starts them, killed as a machine that loses power, and started again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integrations.frameworks import EXAMPLES
from tests.integrations.test_examples import Example, arguments, assert_ended_by_hand, example

__all__ = ["example"]

SECONDS = 240


def started(program: str, given: list[str]) -> subprocess.Popen:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.Popen(
        [*torchrun, "--nproc-per-node=2", str(EXAMPLES / f"{program}.py"), *given],
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


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS)
def test_it_ends_with_the_same_bits(tmp_path: Path, example: Example) -> None:
    given = arguments(tmp_path, accumulate=1)
    first = started(example.program, given)
    deadline = time.monotonic() + SECONDS
    while not list(tmp_path.glob("*/worker-1.pt")) + list(tmp_path.glob("*/*/worker-1.pt")):
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.02)
    if example.framework == "transformers":
        time.sleep(0.5)  # It takes up the newest folder, though it were half written.
    kill(first)
    second = started(example.program, given)
    printed, _ = second.communicate(timeout=SECONDS)
    assert second.returncode == 0, printed.decode()
    assert_ended_by_hand(example, tmp_path, accumulate=1)
