"""`localsgd show` of folders: of a run, of a sweep, of several runs, of something else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from localsgd.basics.outside import Origin
from localsgd.cli import main
from localsgd.cli.swept import NAME, keep
from localsgd.train.config.vary import point
from localsgd.train.data import tasks
from localsgd.train.data.tasks import Entry, Source, Task
from tests.cli.conftest import Refused
from tests.show.records import folder_of

RUNS = [f"local_steps={h}-seed{seed}" for seed in (0, 1) for h in (16, 2)]


def swept(place: Path, runs: list[str]) -> Path:
    """A sweep's folder, with those of its runs."""
    for name in runs:
        h, seed = name.removeprefix("local_steps=").split("-seed")
        accuracy = 0.5 + int(seed) / 100 + int(h) / 1000
        settings = {"method": "local", "local_steps": (int(h),), "seed": int(seed)}
        folder_of(place / name, [0.2, accuracy], **settings)
    keep(place, RUNS, ["local_steps"], point({"local_steps": "2"}))
    return place


def test_a_sweep_with_its_differences_in_its_own_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = swept(tmp_path, RUNS)
    folder_of(place / "of-another-sweep", [0.9], method="local", local_steps=(3,))
    assert main(["show", str(place)]) == 0
    said = capsys.readouterr().out
    lines = [line.split() for line in said.splitlines()]
    assert lines[4][:5] == ["16", "2", "52.10", "0.71", "+1.40"]
    assert lines[5] == ["2", "2", "50.70", "0.71", "baseline"]
    assert "sent per" in said
    assert "have begun" not in said


def test_a_sweep_that_is_not_done_has_no_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its baseline is among those that have not begun."""
    assert main(["show", str(swept(tmp_path, RUNS[:1]))]) == 0
    said = capsys.readouterr().out
    assert (
        "1 of 4 runs have begun, and n counts these alone; differences are shown once all have"
        in " ".join(said.split())
    )
    assert "baseline" not in said


def test_a_folder_of_runs_that_is_no_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for h in (16, 2):
        folder_of(tmp_path / f"{h}", [0.5], method="local", local_steps=(h,))
    assert main(["show", str(tmp_path)]) == 0
    names = [line.split()[1] for line in capsys.readouterr().out.splitlines()[3:5]]
    assert names == ["2", "16"]
    assert main(["show", f"{tmp_path / '16'}", f"{tmp_path / '2'}"]) == 0
    names = [line.split()[1] for line in capsys.readouterr().out.splitlines()[3:5]]
    assert names == ["16", "2"]


def test_data_that_is_made_is_not_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(source: Source) -> Task:
        raise NotImplementedError

    card = replace(tasks.card("digits"), source="a formula")
    origin = Origin("mine", "")
    made = {"made": (Entry(replace(card, name="made"), None, load), origin)}
    read = {"read": (Entry(replace(card, name="read"), lambda place: None, load), origin)}
    monkeypatch.setattr(tasks.OUTSIDE, "_added", {**made, **read})
    assert main(["tasks"]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert said.count("made when") == 1
    assert [(row.card.name, row.made, row.found) for row in tasks.describe()][-2:] == [
        ("made", True, None),
        ("read", False, None),
    ]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere", "nowhere is not there; give the folder of a run"),
        ("file", "file is a file; give the folder of a run"),
        ("empty", "empty is no run's folder: it has no run.json"),
        (".", ". is no run's folder; runs are in sweep: give one of these"),
        ("damaged", "damaged/sweep.json is damaged: "),
    ],
)
def test_what_is_no_run_is_refused_in_a_line(
    path: str, said: str, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    swept(tmp_path / "sweep", RUNS[:1])
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    if path == "damaged":
        (swept(tmp_path / "damaged", RUNS[:1]) / NAME).write_text('{"runs": 3}')
    assert refused("show", path).startswith(f"localsgd: {said}")


def test_the_runs_of_a_sweep_are_named_where_one_is_wanted(
    tmp_path: Path, refused: Refused
) -> None:
    said = refused("resume", swept(tmp_path, RUNS))
    assert f"has 4 in it; give one, as {tmp_path / RUNS[0]}" in said


ODD = "[/x] $\\y$ \x1b]0;P\x07"
"""Markup, a formula that is none, and a terminal's title."""


@pytest.mark.parametrize("place", ["folder", "device_name", "model"])
def test_what_a_folder_says_is_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    name = ODD.replace("/", "|")
    folder = folder_of(tmp_path / (name if place == "folder" else "run"), [0.5, 0.6])
    if place == "device_name":
        (folder.path / "environment.json").write_text(json.dumps({"device_name": ODD}))
    elif place == "model":
        run = json.loads((folder.path / "run.json").read_text())
        (folder.path / "run.json").write_text(json.dumps(run | {"model": ODD}))
    picture = folder.path / "drawn.svg"
    assert main(["show", str(folder.path), "--figure", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "\x1b]0;" not in said
    assert ("[/x]" in said) or place == "folder"
    assert picture.exists()


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ({"varied": ["nothing"]}, "varied is nothing; give settings, each once"),
        ({"varied": ["lr", "lr"]}, "varied is lr, lr; give settings, each once"),
        ({"runs": 5}, "runs: give a list, not a whole number"),
    ],
)
def test_a_sweep_of_no_settings_is_refused(
    tmp_path: Path, refused: Refused, kept: dict[str, object], says: str
) -> None:
    place = swept(tmp_path, RUNS)
    before = json.loads((place / NAME).read_text())
    (place / NAME).write_text(json.dumps(before | kept))
    assert f"{place / NAME} is damaged: {says}" in refused("show", place)


@pytest.mark.parametrize("content", [b"\xff", b'{"runs":' + b"[" * 200_000])
def test_a_sweep_that_is_no_json_is_refused(
    tmp_path: Path, refused: Refused, content: bytes
) -> None:
    place = swept(tmp_path, RUNS)
    (place / NAME).write_bytes(content)
    assert str(place / NAME) in refused("show", place)
