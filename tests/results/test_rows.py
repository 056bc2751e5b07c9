"""Runs in long form, and as data frames."""

from __future__ import annotations

from pathlib import Path

import pytest

import localsgd.results.frames
from localsgd.errors import UserError
from localsgd.results import frame, rows
from localsgd.results.rows import columns
from tests.show.records import ROW_BYTES, folder_of


def sweep(place: Path) -> Path:
    folder_of(place / "a", [0.5, 0.8], method="local", local_steps=(4,))
    folder_of(place / "b", [0.4, 0.6, 0.7, 0.9], ended=False, method="local", local_steps=(8,))
    (place / "picture.png").touch()
    return place


def test_a_row_for_each_run_and_evaluation(tmp_path: Path) -> None:
    found = rows([sweep(tmp_path)])
    assert [(row["run"], row["ended"]) for row in found] == [
        ("a", False),
        ("a", True),
        ("b", False),
        ("b", False),
    ]
    assert [row["test_accuracy_fraction"] for row in found] == [0.5, 0.8, 0.4, 0.6]
    assert [row["best_accuracy_fraction"] for row in found] == [None, 0.8, None, None]
    assert [row["local_steps"] for row in found] == ["4", "4", "8", "8"]
    first = list(found[0])
    assert first[:4] == ["run", "ended", "local_steps", "seed"]
    assert first.index("training_seconds") < first.index("task")
    assert found[1]["sent_bytes_level_1"] == ROW_BYTES * found[1]["syncs_level_1"]
    assert {tuple(row) for row in found} == {tuple(found[0])}
    assert rows([tmp_path / "a"])[1]["test_accuracy_fraction"] == 0.8


def test_columns_are_of_one_kind() -> None:
    found = columns([{"a": 1, "b": "x", "c": None}, {"a": 0.5, "b": 2, "c": None}])
    assert found == {"a": [1.0, 0.5], "b": ["x", "2"], "c": [None, None]}


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no run's folder"):
        rows([tmp_path])
    with pytest.raises(UserError, match="there are no runs"):
        rows([])


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    found = frame(sweep(tmp_path), library)  # type: ignore[arg-type]
    assert type(found).__module__.startswith(library)
    assert found.shape[0] == 4
    assert list(found["test_accuracy_fraction"]) == [0.5, 0.8, 0.4, 0.6]


def test_without_a_library_a_frame_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(localsgd.results.frames, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs pandas or polars, which is not installed"):
        frame(tmp_path)
