"""The forecast of a sweep with first phases that runs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from localsgd.cli import forecasting
from localsgd.cli.forecasting import forecast
from localsgd.train.engine.run_folder import Folder
from tests.show.records import plan_of


def test_first_phases_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of 44 steps of 128 samples, with the first 10 in common, at 1 s a step."""
    monkeypatch.setattr(forecasting, "step_seconds", lambda run, task, threads: 16 / 128)
    steps = {"switch": "step:10", "epochs": 4}
    runs = {f"{h}": plan_of(local_steps=(h,), **steps).run for h in (2, 4)}
    folders = {name: Folder(tmp_path / name) for name in runs}
    found = forecast(runs, folders, 1, lambda run: None)  # type: ignore[arg-type, return-value]
    assert found.saved_seconds == pytest.approx(10)
    assert found.seconds == pytest.approx(78)
    assert "first phases that runs share save 10" in str(found)
