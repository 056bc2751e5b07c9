"""Ctrl-C while torch is imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from localsgd.basics.starting import TOO_EARLY

SLOW_TORCH = "import sys, time; print('importing', flush=True); time.sleep(50)"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("command", "launcher", "said"),
    [
        (["-m", "localsgd", "tasks"], None, f"localsgd: {TOO_EARLY}\n"),
        (["localsgd", "tasks"], None, f"localsgd: {TOO_EARLY}\n"),
        (["-m", "localsgd", "tasks"], "its parent", ""),  # the launcher says it once
        (["-m", "localsgd", "tasks"], "1", f"localsgd: {TOO_EARLY}\n"),  # that is no parent of it
        (["-c", "import localsgd"], None, None),  # a library leaves Ctrl-C alone
    ],
)
def test_ctrl_c_while_torch_is_imported(
    tmp_path: Path, command: Sequence[str], launcher: str | None, said: str | None
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(SLOW_TORCH)
    (tmp_path / "localsgd").write_text("from localsgd.cli import main")  # as pip writes it
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    if launcher is not None:
        parent = str(os.getpid())
        environment["LOCALSGD_LAUNCHER"] = parent if launcher == "its parent" else launcher
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    if said is None:
        assert err.endswith("KeyboardInterrupt\n")
    else:
        assert (process.returncode, err) == (130, said)


@pytest.mark.timeout(60)
def test_an_ignored_ctrl_c_stays_ignored(tmp_path: Path) -> None:
    """As for what a shell starts in the background."""
    script = "trap '' INT; exec \"$0\" -m localsgd"
    (tmp_path / "torch.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit(7)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(["sh", "-c", script, sys.executable], env=environment, cwd=tmp_path)
    assert done.returncode == 7
