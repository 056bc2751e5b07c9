"""Ctrl-C outside of training, and hints that are pasted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from localsgd.basics.starting import TOO_EARLY
from localsgd.cli import main, training
from localsgd.train.engine.execution import Execution
from localsgd.train.launch import ending
from tests.cli.conftest import TINY

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
SAME = "interrupted; go on with: the same command"


def stop(*_: Any, **__: Any) -> NoReturn:
    raise KeyboardInterrupt


def before(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(training, "task_of", stop)


def after(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(Execution, "_finish", stop)


@pytest.mark.parametrize("when", [before, after])
@pytest.mark.parametrize(
    ("command", "again"),
    [
        (["run"], "interrupted; go on with: localsgd resume {out}"),
        (["compare", "--methods", "local"], SAME),
        (["sweep", "--vary", "local_steps=3,4", "--seeds", "0"], SAME),
    ],
)
def test_what_is_kept_and_how_to_go_on(
    when: Callable[[pytest.MonkeyPatch], None],
    command: list[str],
    again: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ending, "_said", False)
    when(monkeypatch)
    out = tmp_path / "out"
    settings = [*TINY, "--method", "local", "--switch", "first-decay", "--quiet", "--out", str(out)]
    assert main([*command, *settings]) == 130
    said = TOO_EARLY if when is before else again.format(out=out)
    assert capsys.readouterr().err == f"localsgd: {said}\n"
    assert any(out.rglob("run.json")) == (when is after)


@pytest.mark.parametrize(("module", "as_module"), [("localsgd_sums", False), ("parts.sums", True)])
@pytest.mark.timeout(200)
def test_a_hint_works_as_it_is_pasted(module: str, as_module: bool, tmp_path: Path) -> None:
    """Where the module lies in the current folder, and PYTHONPATH was set for one command."""
    place = tmp_path / "a place"
    shutil.copytree(EXAMPLE / "localsgd_sums", place / "localsgd_sums")
    (place / "parts").mkdir()  # without an __init__.py
    (place / "parts" / "sums.py").write_text("from localsgd_sums import LOCALSGD\n")
    (place / "bin").mkdir()
    program = place / "bin" / "localsgd"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m localsgd "$@"\n')
    program.chmod(0o755)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["OMP_NUM_THREADS"] = "1"
    variables["PATH"] = f"{place / 'bin'}:{variables['PATH']}"
    begin = f"{sys.executable} -m localsgd" if as_module else "PYTHONPATH=.:/nowhere localsgd"
    settings = "--task sums --workers 2 --method local --epochs 40 --train-samples 64 --out 'a run'"
    with subprocess.Popen(
        ["sh", "-c", f"exec env {begin} run --use {module} {settings}"],
        cwd=place,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("epoch"))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    hint = err.strip().removeprefix("localsgd: interrupted; go on with: ")
    path = "." if as_module else ".:/nowhere"
    assert hint == f"PYTHONPATH={path} localsgd resume 'a run' --use {module}"
    pasted = subprocess.run(["sh", "-c", hint], cwd=place, env=variables, capture_output=True)
    assert (pasted.returncode, pasted.stderr) == (0, b"")
    assert (place / "a run" / "summary.json").is_file()
