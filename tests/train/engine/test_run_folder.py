from __future__ import annotations

import errno
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from localsgd.errors import UserError
from localsgd.train.engine.environment import environment
from localsgd.train.engine.run_folder import Folder, check_place, locked, write_whole
from tests.runs import Killed, files_of_at_most, tiny

LEDGER = [{"calls": 2, "bytes": 800, "seconds": 0.5}]
ROW = {
    "step": 4, "epoch": 1.0, "train_loss": 2.0, "test_loss": 2.5, "test_accuracy": 0.5, "lr": 0.1,
    "syncs": [2], "ledger": LEDGER, "seconds": 1.5,
}  # fmt: skip
SUMMARY = {
    "test_accuracy": 0.5, "test_loss": 2.5, "diverged": False, "local_accuracy": None,
    "best_accuracy": 0.5, "best_epoch": 1.0, "train_loss": 2.0, "steps": 4, "samples": 80,
    "syncs": [2], "ledger": LEDGER, "seconds": 1.5, "paused": {"saving": 0.25},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder.create(tmp_path / "run", tiny(), {"cores": 2})


def test_what_a_new_run_has(folder: Folder) -> None:
    names = [".lock", "environment.json", "run.json"]
    assert sorted(path.name for path in folder.path.iterdir()) == names
    assert folder.run == tiny()
    assert folder.environment() == {"cores": 2}
    assert folder.metrics() == []
    assert folder.summary() is None


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    assert Folder.create(tmp_path, tiny(), {}).run == tiny()


def test_two_cannot_write_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(UserError, match="is being written by another process"):
        Folder.create(tmp_path, tiny(), {})
    assert Folder.create(tmp_path, tiny(), {}).run == tiny()
    with pytest.raises(UserError, match="exists already"):
        Folder.create(tmp_path, tiny(seed=1), {})


def test_of_two_that_begin_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other is quicker between the look whether the folder is new and the first file."""
    mkdir = Path.mkdir

    def other_is_quicker(path: Path, **options: bool) -> None:
        monkeypatch.undo()
        mkdir(path, **options)
        Folder.create(path, tiny(seed=5), {})

    monkeypatch.setattr(Path, "mkdir", other_is_quicker)
    with pytest.raises(UserError, match="exists already"):
        Folder.create(tmp_path / "run", tiny(), {})
    assert Folder(tmp_path / "run").run == tiny(seed=5)


def test_a_file_system_without_locks_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with locked(tmp_path):
        assert Folder.create(tmp_path, tiny(), {}).run == tiny()


def test_what_is_there_is_left_alone(folder: Folder, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    again = "go on with it by `localsgd resume .*`, or give another place"
    for path, hint in ((folder.path, again), (file, "give another place")):
        with pytest.raises(UserError, match=f"exists already; {hint} with --out"):
            Folder.create(path, tiny(seed=1), {})
    assert folder.run == tiny()
    assert file.read_text() == "mine"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="run cannot be written; give another place with --out"):
        Folder.create(tmp_path / "file" / "run", tiny(), {})


def test_a_place_is_looked_at_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_place(tmp_path / "new" / "one")
    with pytest.raises(UserError, match="file cannot be written; give another place with --work"):
        check_place(tmp_path / "file", "--work")
    with pytest.raises(UserError, match="one cannot be written; give another place with --out"):
        check_place(tmp_path / "file" / "new" / "one")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_runs_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no run's folder: it has no run\.json"):
        Folder.open(tmp_path)


def test_dying_at_the_start_leaves_a_run_that_can_be_resumed_or_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace
    for survivors in range(2):
        path, left = tmp_path / str(survivors), [survivors]

        def dies(source: Path, target: Path, left: list[int] = left) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            real(source, target)

        monkeypatch.setattr(os, "replace", dies)
        with pytest.raises(Killed):
            Folder.create(path, tiny(), {})
        monkeypatch.undo()
        assert not (path / "run.json").exists() or Folder.open(path).run == tiny()
    assert Folder.open(path).environment() == {}


def test_files_appear_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, b"first")

    def dies(source: Path, target: Path) -> None:
        raise Killed

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(Killed):
        write_whole(path, b"second")
    assert path.read_bytes() == b"first"


def test_shards_that_start_at_once_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    contents = [bytes([65 + number]) * 4096 for number in range(4)]

    def write(content: bytes) -> None:
        for _ in range(20):
            write_whole(path, content, shared=True)
            assert path.read_bytes() in contents

    with ThreadPoolExecutor(len(contents)) as pool:
        list(pool.map(write, contents))
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"first")
    with files_of_at_most(100), pytest.raises(OSError, match="File too large") as told:
        write_whole(path, b"x" * 1000)
    assert told.value.filename == str(path)
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["summary", "environment"])
@pytest.mark.parametrize("content", ['{"test_acc', "[]", ""])
def test_damaged_records_are_refused(folder: Folder, name: str, content: str) -> None:
    (folder.path / f"{name}.json").write_text(content)
    with pytest.raises(UserError, match=rf"{name}\.json is damaged: .*; put it back, or remove"):
        getattr(folder, name)()


def test_metrics_are_json_lines_and_a_torn_one_is_left_out(folder: Folder) -> None:
    rows = [ROW | {"step": step} for step in (4, 8, 12)]
    for row in rows:
        folder.append(row)
    path = folder.path / "metrics.jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == rows
    path.write_text(path.read_text()[:-9])
    assert folder.metrics() == rows[:2]
    folder.forget_after(8)
    folder.append(rows[2])
    assert folder.metrics() == rows
    folder.forget_after(0)
    assert path.read_text() == ""


def test_the_model_is_a_plain_state_dict(folder: Folder) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).to(
        memory_format=torch.channels_last  # pyrefly: ignore
    )
    folder.finish(SUMMARY, model)
    assert folder.summary() == SUMMARY
    found = load_file(folder.model)
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


def test_environment_is_json() -> None:
    found = json.loads(json.dumps(environment(torch.device("cpu"), 2)))
    assert found["processes"] == 2
    assert found["torch"] == torch.__version__
    assert found["threads"] == 1


def test_numbers_that_are_not_finite_are_null(folder: Folder) -> None:
    lost = {"train_loss": math.nan, "test_loss": math.inf}
    folder.append(ROW | lost)
    folder.forget_after(4)
    folder.finish(SUMMARY | lost | {"diverged": True}, nn.Linear(1, 1))

    def refuse(word: str) -> None:
        raise AssertionError(word)

    for path in (folder.path / "metrics.jsonl", folder.path / "summary.json"):
        assert json.loads(path.read_text(), parse_constant=refuse)["test_loss"] is None
    for found in (*folder.metrics(), folder.summary()):
        assert found is not None
        assert math.isnan(found["test_loss"])


DAMAGES = [
    {"step": None}, {"epoch": "1"}, {"ledger": [{}]}, {"ledger": None}, {"syncs": [None]},
    {"test_accuracy": "high"}, {"seconds": []}, {"lr": {}},
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_an_evaluation_that_lacks_something_is_refused(folder: Folder, damage: dict) -> None:
    folder.append(ROW | damage)
    with pytest.raises(UserError, match=r"metrics\.jsonl:1 is damaged: "):
        folder.metrics()


@pytest.mark.parametrize("name", SUMMARY)
def test_a_summary_without_something_is_refused_or_whole(folder: Folder, name: str) -> None:
    folder.finish({key: SUMMARY[key] for key in SUMMARY if key != name}, nn.Linear(1, 1))
    if name in ("diverged", "paused", "local_accuracy", "best_accuracy"):
        assert folder.summary() is not None
    else:
        with pytest.raises(UserError, match=r"summary\.json is damaged: "):
            folder.summary()


def test_a_damaged_line_in_the_middle_is_named(folder: Folder) -> None:
    for step in (4, 8, 12):
        folder.append(ROW | {"step": step})
    path = folder.path / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-9], lines[2]]) + "\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:2 is damaged"):
        folder.metrics()


@pytest.mark.parametrize("name", ["lr", "batch", "epochs", "topology", "model", "workers", "outer"])
def test_a_configuration_with_a_null_is_refused(folder: Folder, name: str) -> None:
    path = folder.path / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: None}))
    with pytest.raises(UserError, match=rf"run\.json is damaged: it lacks {name}"):
        _ = folder.run


def test_no_room_for_a_line_leaves_the_lines_before_it(folder: Folder) -> None:
    folder.append(ROW)
    path = folder.path / "metrics.jsonl"
    room = path.stat().st_size + 40
    with files_of_at_most(room), pytest.raises(OSError, match="File too large") as told:
        folder.append(ROW | {"step": 8})
    assert told.value.filename == str(path)
    assert path.stat().st_size <= room
    assert folder.metrics() == [ROW]
    folder.forget_after(4)  # as a resumed run does
    folder.append(ROW | {"step": 8})
    assert folder.metrics() == [ROW, ROW | {"step": 8}]


def test_pipes_and_devices_are_refused(folder: Folder) -> None:
    os.mkfifo(folder.path / "metrics.jsonl")
    (folder.path / "environment.json").unlink()
    (folder.path / "environment.json").symlink_to("/dev/zero")
    with pytest.raises(UserError, match="is a pipe or a device"):
        folder.metrics()
    assert folder.environment() == {}  # as if it were not there


def test_nothing_is_written_through_a_link(folder: Folder, tmp_path: Path) -> None:
    """Whatever a received folder links to, only the names in it change."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("metrics.jsonl", "model.safetensors", "summary.json"):
        (folder.path / f"{name}.partial").symlink_to(victim)
    folder.append(ROW)
    folder.forget_after(4)
    folder.finish(SUMMARY, nn.Linear(1, 1))
    assert victim.read_text() == "precious"
    assert folder.metrics() == [ROW]
    (folder.path / "metrics.jsonl").unlink()
    (folder.path / "metrics.jsonl").symlink_to(victim)
    with pytest.raises(UserError, match=r"metrics\.jsonl is a link; remove it"):
        folder.append(ROW)
    assert victim.read_text() == "precious"
    (folder.path / "snapshots").symlink_to(tmp_path)
    with pytest.raises(UserError, match="snapshots is a link; remove it"):
        folder.snapshot(1, nn.Linear(1, 1))


def test_a_lock_that_is_a_link_or_a_pipe_is_refused(folder: Folder, tmp_path: Path) -> None:
    lock = folder.path / ".lock"
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"\.lock is a link; remove it"), locked(folder.path):
        pass
    assert not (tmp_path / "elsewhere").exists()
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(UserError, match=r"\.lock is a pipe"), locked(folder.path):
        pass


def test_runs_on_another_disk_are_as_others(tmp_path: Path) -> None:
    """Only names inside a run's folder are no links."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    made = Folder.create(tmp_path / "runs" / "one", tiny(), {})
    (tmp_path / "two").symlink_to(made.path)
    linked = Folder.open(tmp_path / "two")
    with locked(linked.path):
        linked.append(ROW)
        linked.forget_after(4)
    assert made.metrics() == [ROW]


WRONG_ENTRIES = [
    [],
    [*LEDGER, *LEDGER],
    *([LEDGER[0] | {"arrived": wrong}] for wrong in (None, "x", -1, 10**400)),
    [LEDGER[0] | {"calls": -1}],
    [LEDGER[0] | {"seconds": 1e300}],
]
"""Ledgers of a run of one level that no run writes."""


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("step", [-1, 1e308, 10**30]),
        ("epoch", [-1.0, 1e308, 10**400]),
        ("seconds", [-1.0, 1e308]),
        ("syncs", [[], [2, 2], [-1], ["x"], 5]),
        ("ledger", WRONG_ENTRIES),
        ("local_steps", [None, 5, [], [1, 2], ["x"]]),
        ("drift", [None, 5, {"to_mean": "x"}]),
        ("test_accuracy", [1e308, -0.1, "x"]),
        ("local_accuracy", [1e308, "x"]),
    ],
)
def test_numbers_that_no_evaluation_has_are_refused(
    folder: Folder, name: str, wrong: list[Any]
) -> None:
    for value in wrong:
        (folder.path / "metrics.jsonl").write_text(json.dumps(ROW | {name: value}) + "\n")
        with pytest.raises(UserError, match=rf"metrics\.jsonl:1 is damaged: {name}") as refused:
            folder.metrics()
        assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("steps", [-1, 1e308]),
        ("samples", [-1, 1e308]),
        ("best_epoch", ["x", -1.0]),
        ("seconds", [-1.0, 1e308]),
        ("paused", [None, {"saving": "x"}]),
        ("syncs", [[], [2, 2], ["x"]]),
        ("ledger", WRONG_ENTRIES),
        ("test_accuracy", [1e308]),
        ("best_accuracy", [1e308, "x", True]),
        ("local_accuracy", [1e308, "x"]),
    ],
)
def test_numbers_that_no_summary_has_are_refused(
    folder: Folder, name: str, wrong: list[Any]
) -> None:
    for value in wrong:
        (folder.path / "summary.json").write_text(json.dumps(SUMMARY | {name: value}))
        with pytest.raises(UserError, match=rf"summary\.json is damaged: {name}"):
            folder.summary()


def test_evaluations_have_one_metric(folder: Folder) -> None:
    other = {key: value for key, value in ROW.items() if key != "test_accuracy"}
    folder.append(ROW)
    folder.append(other | {"test_perplexity": 90.0})
    with pytest.raises(UserError, match=r"metrics\.jsonl:2 is damaged: it has another metric"):
        folder.metrics()
