"""`--log` alone has drift and the local models at each evaluation, and changes no bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import TINY, Command, Ranks, same_end

RUN = ("run", *TINY, "--log", "jsonl")
WANTED = ("drift_to_mean", "drift_between", "local_accuracy_fraction")


def told(run: Path) -> list[dict[str, Any]]:
    """The evaluations in its log, without what the clock says."""
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [row for row in rows if "test_loss" in row]


def of_workers(run: Path) -> list[list[float]]:
    return [[row[name] for name in WANTED] for row in told(run)]


@pytest.fixture(scope="module")
def logged(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("logged") / "run"
    ended = command(*RUN, "--out", run, COLUMNS="160")
    assert (ended.status, ended.err) == (0, "")
    said = "drift and local models at each evaluation: 4 more evaluations"
    assert said in " ".join(ended.out.split())
    return run


def test_a_log_alone_has_them_and_changes_no_bit(logged: Path, whole: Path) -> None:
    assert same_end(logged, whole)
    assert (logged / "run.json").read_bytes() == (whole / "run.json").read_bytes()
    assert "drift" not in (whole / "metrics.jsonl").read_text()
    assert [row["step"] for row in told(logged)] == [4, 8, 12]
    assert [row[0] > 0 for row in of_workers(logged)] == [False, True, True]


def test_two_processes_log_the_same_numbers(ranks: Ranks, logged: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first, second = ranks(*2 * [[*RUN, "--out", run, "--quiet"]])
    assert (first.status, first.err) == (second.status, second.err) == (0, "")
    assert same_end(run, logged)
    assert of_workers(run) == of_workers(logged)


def test_interrupted_and_resumed_it_logs_the_same_numbers(
    command: Command, logged: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert command(*RUN, "--out", run, "--quiet", at_step=(6, "SIGTERM")).status == 130
    assert command("resume", run, "--quiet").status == 0
    assert same_end(run, logged)
    assert of_workers(run) == of_workers(logged)


def test_no_local_models_where_the_user_wants_none(command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = command(*RUN, "--out", run, "--evaluate-local", "never", COLUMNS="160")
    assert ended.status == 0
    assert "drift at each evaluation" in " ".join(ended.out.split())
    for row in told(run):
        assert "drift_between" in row
        assert "local_accuracy_fraction" not in row


def test_runs_of_a_sweep_have_them(command: Command, logged: Path, tmp_path: Path) -> None:
    """Also of the first phase, which is trained once for both."""
    ended = command(
        *("sweep", *TINY, "--vary", "local_steps=2,3", "--seeds", 0, "--log", "jsonl"),
        *("--out", tmp_path, "--quiet"),
    )
    assert (ended.status, ended.err) == (0, "")
    runs = sorted(path.parent for path in tmp_path.glob("*/run.json"))
    assert len(runs) == 2
    assert [len(of_workers(run)) for run in runs] == [3, 3]
    assert of_workers(runs[1]) == of_workers(logged)
