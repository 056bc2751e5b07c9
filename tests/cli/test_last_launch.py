"""A run is gone on with as it was carried out, unless something else is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localsgd.cli.last_launch import MOST_PER_CORE, NAME, as_before, keep, not_told
from localsgd.cli.options import Hosting, ResumeHosting, hosting_arguments
from localsgd.cli.training import complete
from localsgd.errors import UserError
from localsgd.train.config.run import Run
from localsgd.train.engine.run_folder import locked
from localsgd.train.launch import World
from localsgd.train.launch.join import cores
from tests.cli.conftest import TINY, Command, Ranks
from tests.cli.test_mistakes import refused

OTHER = Hosting(
    data_dir=Path("/somewhere/data"),
    checkpoint_every=3,
    heartbeat_seconds=4.5,
    timeout_minutes=0.25,
)


def test_what_is_not_said_is_as_before(tmp_path: Path) -> None:
    keep(tmp_path, OTHER, World())
    assert as_before(tmp_path, ResumeHosting()) == OTHER


def test_what_is_said_comes_first(tmp_path: Path) -> None:
    keep(tmp_path, OTHER, World())
    given = ResumeHosting(processes=0, data_dir=Path("here"), timeout_minutes=7.0, quiet=True)
    found = as_before(tmp_path, given)
    assert (found.processes, found.data_dir, found.quiet) == (0, Path("here"), True)
    assert (found.checkpoint_every, found.heartbeat_seconds, found.timeout_minutes) == (3, 4.5, 7.0)


def test_a_folder_without_it_has_the_usual_settings(tmp_path: Path) -> None:
    assert as_before(tmp_path, ResumeHosting()) == Hosting()


def test_processes_are_started_by_a_command_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME).write_text('{"processes": 2, "of a later version": 1}')
    assert as_before(tmp_path, ResumeHosting()).processes == 2
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert as_before(tmp_path, ResumeHosting()).processes is None
    (tmp_path / NAME).write_text(f'{{"processes": {MOST_PER_CORE * cores() + 1}}}')
    assert as_before(tmp_path, ResumeHosting()).processes is None  # of the launcher alone


def test_a_run_keeps_how_it_is_carried_out_and_resume_reads_it(
    command: Command, ranks: Ranks, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    both = dict.fromkeys((0, 1), (6, "SIGTERM"))
    settings = ("--quiet", "--heartbeat-seconds", "9", "--data-dir", tmp_path)
    ranks(*2 * [["run", *TINY, "--out", run, *settings]], at_step=both)
    expected = Hosting(data_dir=tmp_path, heartbeat_seconds=9.0)
    assert as_before(run, ResumeHosting()) == expected
    assert command("resume", run, "--quiet", "--timeout-minutes", "60").status == 0
    assert as_before(run, ResumeHosting()).timeout_minutes == 60.0


@pytest.mark.parametrize("wrong", ["{", '{"processes": "many"}', '{"heartbeat_seconds": 0}'])
def test_a_damaged_one_is_refused(command: Command, tmp_path: Path, wrong: str) -> None:
    run = tmp_path / "run"
    command("run", *TINY, "--out", run, "--quiet", at_step=(6, "SIGINT"))
    (run / NAME).write_text(wrong)
    says = "--heartbeat-seconds 0 is out of range" if "seconds" in wrong else f"{NAME} is damaged"
    refused(command, says, "resume", run)


def test_what_a_folder_says_is_checked_before_a_process_starts(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    command("run", *TINY, "--out", run, "--quiet", at_step=(6, "SIGINT"))
    many = MOST_PER_CORE * cores() + 1
    for kept, says in (
        ({"processes": 3}, "4 workers (4) cannot be spread evenly over 3 processes"),
        ({"processes": many}, f"give --processes {many} if you want that"),
        ({"processes": -2}, "--processes -2 is too small"),
        ({"timeout_minutes": 1e300}, "--timeout-minutes 1e+300 is out of range"),
        ({"heartbeat_seconds": 1e300}, "--heartbeat-seconds 1e+300 is out of range"),
    ):
        (run / NAME).write_text(json.dumps(kept))
        refused(command, says, "resume", run)
    (run / NAME).unlink()
    for processes in ("many", 0, 1.5, True, None):
        (run / "environment.json").write_text(json.dumps({"processes": processes}))
        refused(command, "processes is", "resume", run, "--processes", "auto")
    (run / "environment.json").write_text(json.dumps({"processes": many}))
    says = f"environment.json asks for {many} processes"
    refused(command, says, "resume", run, "--processes", "auto")
    assert as_before(run, ResumeHosting(processes=many)).processes == many


def test_home_is_meant_by_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which no shell replaces in --data-dir=~/data."""
    monkeypatch.setenv("HOME", str(tmp_path))
    hosting = Hosting(data_dir=Path("~/data"))
    keep(tmp_path, hosting, World())
    assert as_before(tmp_path, ResumeHosting()).data_dir == tmp_path / "data"
    assert f"--data-dir={tmp_path / 'data'}" in hosting_arguments(hosting)


def test_files_that_a_run_reads_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = complete(Run(init="a/model.safetensors", partition="column:owners.txt"))
    assert wanted.init == str(tmp_path / "a" / "model.safetensors")
    assert wanted.partition == f"column:{tmp_path / 'owners.txt'}"


def test_a_folder_that_another_process_writes_is_refused(
    command: Command, ranks: Ranks, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command("run", *TINY, "--out", run, "--quiet", at_step=(6, "SIGINT"))
    before = (run / "metrics.jsonl").read_bytes()
    says = f"{run} is being written by another process; wait until that has ended, or end it"
    with locked(run):
        refused(command, says, "resume", run)
        refused(command, says, "resume", run, "--processes", "2")
        ended = ranks(*2 * [["resume", run]])
        assert ended[0].status == 2
        assert all(says in process.err and process.err.count("\n") == 1 for process in ended)
        assert (run / "metrics.jsonl").read_bytes() == before
    assert command("resume", run, "--quiet").status == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"x": ' + b"[" * 200_000, f"{NAME} is damaged: "),
        (b"\xff", f"{NAME} is no text: invalid start byte"),
        (b'{"data_dir": "\xff"}', f"{NAME} is no text: invalid start byte"),
    ],
    ids=["deep", "no text", "no text inside"],
)
def test_a_file_that_is_none_is_refused_in_one_line(
    tmp_path: Path, content: bytes, says: str
) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(UserError) as refusal:
        as_before(tmp_path, ResumeHosting())
    said = str(refusal.value)
    assert says in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("place", "says"),
    [("a\0b", r"'a\x00b' is no path"), ("~no-such-user/x", "names a home that is not there")],
)
def test_a_data_folder_that_is_no_path_is_refused(tmp_path: Path, place: str, says: str) -> None:
    (tmp_path / NAME).write_text(json.dumps({"data_dir": place}))
    hosting = as_before(tmp_path, ResumeHosting())
    with pytest.raises(UserError) as refusal:
        hosting.check()
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("log", "taken", "services"),
    [
        ("jsonl,tensorboard", "jsonl,tensorboard", ""),
        ("jsonl, wandb", "jsonl", "wandb"),
        ("wandb", "", "wandb"),
        ("mlflow,jsonl,wandb", "jsonl", "mlflow and wandb"),
    ],
)
def test_a_folder_does_not_choose_where_numbers_are_sent(
    tmp_path: Path, log: str, taken: str, services: str
) -> None:
    keep(tmp_path, Hosting(log=log), World())
    unsaid = ResumeHosting()
    assert as_before(tmp_path, unsaid).log == taken
    line = f"Not logged to {services} as before, unless you say --log {log}" if services else ""
    assert not_told(tmp_path, unsaid) == line
    for said in (log, ""):
        given = ResumeHosting(log=said)
        assert as_before(tmp_path, given).log == said
        assert not_told(tmp_path, given) == ""
        assert f"--log={said}" in hosting_arguments(as_before(tmp_path, given))


def test_resume_says_that_it_sends_nothing(command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command("run", *TINY, "--out", run, "--quiet", at_step=(6, "SIGINT"))
    kept = json.loads((run / NAME).read_text())
    (run / NAME).write_text(json.dumps(kept | {"log": "jsonl,wandb"}))
    ended = command("resume", run)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("Not logged to wandb as before, unless you say --log jsonl,wandb\n")
    assert (run / "log.jsonl").exists()
    assert not (run / "wandb").exists()
