"""`python -m benchmarks.network`: a program of one's own, started by torchrun on every node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.network.__main__ import main
from tests.benchmarks.network.conftest import ROOT

PROGRAM = """
import os, sys
with open(sys.argv[1] + os.environ["RANK"], "w") as file:
    file.write(" ".join(os.environ[name] for name in sys.argv[2:]))
sys.exit(int(os.environ["RANK"] == "1") * 3)
"""
NAMES = ("WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")


@pytest.mark.timeout(90)
def test_torchrun_starts_the_program_on_every_node(possible: None, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    started = [str(tmp_path / "program.py"), f"{tmp_path}/rank-", *NAMES]
    command = [sys.executable, "-m", "benchmarks.network", "--nodes", "2", "--", *started]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    for rank in range(2):
        found = (tmp_path / f"rank-{rank}").read_text()
        assert found == f"2 {rank} 0 10.77.0.1 wire"
    assert "node 1: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rate", "fast"], "rate 'fast' is not understood"),
        (["--rate", "1kbit"], "10 Mbit/s to 10 Gbit/s"),
        (["--up-link", "10mbit"], "one rack has no up-link"),
        (["--processes", "0"], "0 processes"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], said: str, capsys) -> None:
    assert main([*arguments, "--", "train.py"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
