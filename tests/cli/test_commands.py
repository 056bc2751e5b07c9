from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, get_args

import pytest

from localsgd.cli.fault_tolerant import FaultTolerantCommand
from localsgd.cli.main import CALLED, _parse
from localsgd.cli.options import Command
from localsgd.cli.training import complete
from localsgd.errors import UserError
from localsgd.train.config.run import Run, to_json


def test_every_command_of_the_help_is_called() -> None:
    """And each one's function is there."""
    kinds = {get_args(named)[0] for named in get_args(Command)}
    assert set(CALLED) == {*kinds, FaultTolerantCommand}
    for module, name in CALLED.values():
        assert callable(getattr(importlib.import_module(f"localsgd.cli.{module}"), name))


def test_another_method_than_that_of_a_file_has_steps_of_its_own(tmp_path: Path) -> None:
    """Mini-batch SGD does not read H, so that its 1 is nobody's wish."""
    path = tmp_path / "run.json"
    path.write_bytes(to_json(complete(Run(method="mini-batch", workers=4))))
    for method, steps, rate in (
        ("local", (8,), 0.05),
        ("mini-batch", (1,), 0.05),
        ("diloco", (8,), 0.001),
    ):
        command: Any = _parse(["run", "--config", str(path), "--method", method])
        run = complete(command.run)
        assert (run.local_steps, run.lr) == (steps, rate)
    with pytest.raises(UserError, match="--config is given twice"):
        _parse(["run", "--config", str(path), f"--config={path}"])
