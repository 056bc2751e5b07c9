"""The forecast of a sweep: first phases that runs share, and what is said where they don't."""

from __future__ import annotations

from pathlib import Path

import pytest

from localsgd.cli import forecasting
from localsgd.cli.forecasting import forecast
from localsgd.train.engine.run_folder import Folder
from tests.show.records import plan_of


@pytest.mark.parametrize("shared", [True, False])
def test_first_phases_by_hand(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of 44 steps of 128 samples, with the first 10 in common, at 1 s a step."""
    monkeypatch.setattr(forecasting, "step_seconds", lambda run, task, threads: 16 / 128)
    steps = {"switch": "step:10", "epochs": 4}
    runs = {f"{h}": plan_of(local_steps=(h,), **steps).run for h in (2, 4)}
    folders = {name: Folder(tmp_path / name) for name in runs}
    found = forecast(runs, folders, 1, lambda run: None, shared=shared)  # type: ignore[arg-type, return-value]
    assert found.saved_seconds == pytest.approx(10)
    assert found.seconds == pytest.approx(78 if shared else 88)
    said = str(found)
    assert ("first phases that runs share save 10" in said) == shared
    assert ("only one process without --watch shares them" in said) != shared
