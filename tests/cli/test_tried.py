"""What happens to a run's folder and clock while it trains."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from localsgd.errors import UserError
from tests.runs import prepared, same, tiny, worker_states


def test_a_folder_that_is_removed_under_way(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def remove(step: int) -> None:
        if step == 2:
            shutil.rmtree(run)

    with pytest.raises((OSError, UserError)) as told:
        prepared(tiny(), run, at_step=remove).train()
    assert told.value.filename == str(run / "metrics.jsonl")  # type: ignore[union-attr]
    assert not run.exists()


def test_a_clock_that_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = prepared(tiny(), tmp_path / "one")
    undisturbed.train()
    now = time.time

    def set_back(step: int) -> None:
        if step == 2:
            monkeypatch.setattr(time, "time", lambda: now() - 86_400)

    other = prepared(tiny(), tmp_path / "other", at_step=set_back)
    summary = other.train()
    assert summary["seconds"] > 0
    assert all(row["seconds"] > 0 for row in other.folder.metrics())
    assert same(worker_states(undisturbed.assembly), worker_states(other.assembly))
