from __future__ import annotations

import importlib
from typing import get_args

from localsgd.cli.fault_tolerant import FaultTolerantCommand
from localsgd.cli.main import CALLED
from localsgd.cli.options import Command


def test_every_command_of_the_help_is_called() -> None:
    """And each one's function is there."""
    kinds = {get_args(named)[0] for named in get_args(Command)}
    assert set(CALLED) == {*kinds, FaultTolerantCommand}
    for module, name in CALLED.values():
        assert callable(getattr(importlib.import_module(f"localsgd.cli.{module}"), name))
