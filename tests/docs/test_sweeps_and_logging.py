"""The pages on sweeps and logging: their commands run, shortened, and their code as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from localsgd.cli import main
from localsgd.logs import Logger, Observer
from localsgd.results.numbers import numbers_of
from localsgd.train.engine.execution import prepare
from tests.runs import digits, tiny

DOCS = Path(__file__).parents[2] / "docs"
SWEEPS, LOGGING = ((DOCS / name).read_text() for name in ("sweeps.md", "logging.md"))


def commands(page: str) -> list[list[str]]:
    """The page's commands, with runs of a fifth of an epoch."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", page, re.S):
        for command in block.replace("\\\n", " ").split("$ localsgd ")[1:]:
            found.append(shlex.split(re.sub(r"--epochs \S+", "--epochs 0.2", command)))
    return found


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.S)


def test_the_commands_on_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in commands(SWEEPS):
        assert main(command) == 0, capsys.readouterr().err
    assert "95 % interval" in capsys.readouterr().out
    assert "\\toprule" in (tmp_path / "table.tex").read_text()
    assert len((tmp_path / "evaluations.csv").read_text().splitlines()) == 1 + 9
    pytest.importorskip("pandas", reason="pandas is not installed")
    exec(blocks(SWEEPS)[0], {})
    assert "mean" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # what the service warns of itself
def test_the_command_on_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    monkeypatch.chdir(tmp_path)
    [command] = commands(LOGGING)
    assert main([*command, "--quiet"]) == 0
    assert (tmp_path / "runs" / "logged" / "log.jsonl").read_text().count("\n") >= 1
    assert list((tmp_path / "runs" / "logged" / "tensorboard").iterdir())


def test_the_loop_on_logging(capsys: pytest.CaptureFixture[str]) -> None:
    exec(blocks(LOGGING)[0], {})
    first, second = capsys.readouterr().out.splitlines()
    assert "'steps': 6, 'local_steps_level_1': 4, 'syncs_level_1': 1" in first
    assert "'steps': 12, 'local_steps_level_1': 4, 'syncs_level_1': 3" in second


def test_the_logger_on_logging(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, Any] = {}
    exec(blocks(LOGGING)[1], space)
    logger: Logger = space["Printed"](tmp_path / "run")
    prepare(tiny(), digits(), tmp_path / "run", logger).train()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "begins digits post-local"
    assert [line.split()[0] for line in lines[1:-1]] == ["4", "8", "12", "12"]
    assert lines[-1] == "ends"


def test_every_number_is_in_the_table(tmp_path: Path) -> None:
    execution = prepare(tiny(evaluate_local="always"), digits(), tmp_path / "run", Observer())
    execution.train()
    named = set(re.findall(r"`(\w+)`", LOGGING))
    for row in [*execution.folder.metrics(), execution.folder.summary() or {}]:
        plain = {re.sub(r"_level_\d+$", "", name) for name in numbers_of(row)} - {"step"}
        assert plain <= named | {re.sub(r"_level_\d+$", "", name) for name in named}
