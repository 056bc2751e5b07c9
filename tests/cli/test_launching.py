"""Real launchers; slow, as every process imports everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from localsgd.train.engine.run_folder import Folder
from tests.cli.conftest import SECONDS, TINY, Zygote, same_end

PYTHON = (sys.executable, "-m")


@pytest.fixture
def start(zygote: Zygote) -> Callable[..., subprocess.Popen[str]]:
    def start(*arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            list(map(str, arguments)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=zygote.environment,
        )

    return start


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [
        int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()
    ]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] in "ZX"
    except OSError:
        return True


def test_processes_killed_with_their_launcher_and_resumed(
    start, zygote: Zygote, command, tmp_path: Path
) -> None:
    longer = (*TINY, "--epochs", "120", "--evaluate-every", "4", "--quiet", "--out")
    run = tmp_path / "run"
    launcher = start(*PYTHON, "localsgd", "run", *longer, run, "--processes", 2)
    wait_for(lambda: len(list(run.glob("checkpoints/step-????????"))) > 1)
    children = children_of(launcher.pid)
    assert len(children) == 2
    os.kill(launcher.pid, signal.SIGKILL)
    wait_for(lambda: all(map(is_gone, children)))
    launcher.communicate()
    assert Folder.open(run).summary() is None, "it was killed too late"

    begun = len(Folder.open(run).metrics())
    again = start(*PYTHON, "localsgd", "resume", run, "--quiet")  # with as many processes
    wait_for(lambda: len(Folder.open(run).metrics()) > begun + 2)
    assert len(children_of(again.pid)) == 2
    for _ in range(2):  # the second comes while it ends
        os.kill(again.pid, signal.SIGINT)
        time.sleep(0.3)
    _, said = again.communicate(timeout=SECONDS)
    assert (again.returncode, said) == (
        130,
        f"localsgd: interrupted; go on with: localsgd resume {run}\n",
    )
    assert Folder.open(run).summary() is None, "it was interrupted too late"

    assert command("resume", run, "--quiet", "--processes", 1).status == 0
    assert command("run", *longer, tmp_path / "whole").status == 0
    assert same_end(run, tmp_path / "whole")


def test_torchrun(start, whole: Path, tmp_path: Path) -> None:
    torchrun = ("torch.distributed.run", "--nproc-per-node", 2, "--standalone")
    run = tmp_path / "run"
    launcher = start(*PYTHON, *torchrun, "-m", "localsgd", "run", *TINY, "--out", run)
    out, err = launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 0, err
    assert out.count("epoch 3.0") == 1
    assert same_end(run, whole)


def test_mistake_in_launched_processes_is_said_once(start, tmp_path: Path) -> None:
    run = tmp_path / "run"
    launcher = start(*PYTHON, "localsgd", "run", *TINY, "--out", run, "--processes", 3)
    out, err = launcher.communicate(timeout=SECONDS)
    assert (launcher.returncode, out) == (2, "")
    assert err.startswith("localsgd: 4 workers (4) cannot be spread evenly over 3 processes")
    assert err.count("\n") == 1
    assert not run.exists()
