"""Ctrl-C outside of training, and hints that are pasted."""

from __future__ import annotations

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
