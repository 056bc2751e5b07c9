from __future__ import annotations

import json
from pathlib import Path

import pytest

from localsgd.train.engine.run_folder import Folder
from tests.cli.conftest import TINY, Command, Ranks, same_end

RUN = ("run", *TINY)


def test_its_run_json_gives_the_same_bits_again(command: Command, whole: Path, tmp_path) -> None:
    again = tmp_path / "again"
    ended = command("run", "--config", whole / "run.json", "--out", again, "--quiet")
    assert (ended.status, ended.out, ended.err) == (0, "", "")
    assert (again / "run.json").read_bytes() == (whole / "run.json").read_bytes()
    assert same_end(again, whole)
    other = tmp_path / "other"
    command("run", f"--config={whole / 'run.json'}", "--out", other, "--quiet", "--seed", 1)
    assert Folder.open(other).run.seed == 1
    assert not same_end(other, whole)


def test_plain_lines_where_there_is_no_terminal(whole: Path) -> None:
    out = (whole.parent / "out").read_text()
    assert "\x1b" not in out
    assert "\r" not in out
    lines = [line for line in out.splitlines() if line.startswith("epoch ") and " · " in line]
    assert [line.split(" · ")[:2] for line in lines] == [
        ["epoch 1.0", "step 4"],
        ["epoch 2.0", "step 8"],
        ["epoch 3.0", "step 12"],
    ]
    assert f"Records: {whole}" in out


def test_a_folder_is_found_where_none_is_named(command: Command, ranks: Ranks) -> None:
    """The same one by all processes, whatever their clocks say."""
    arguments = [*RUN, "--epochs=0.25", "--switch=first-decay", "--quiet"]
    for ended in (command(*arguments), *ranks(arguments, arguments)):
        assert ended.status == 0, ended
        [found] = (ended.folder / "runs").iterdir()
        assert found.name.startswith("digits-post-local-2")
        assert Folder.open(found).summary() is not None


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_interrupted_and_resumed_to_the_same_bits(
    command: Command, whole: Path, tmp_path: Path, how: str
) -> None:
    """With H = 1, and in the middle of a round."""
    for step in (2, 6):
        run = tmp_path / str(step)
        ended = command(*RUN, "--out", run, "--quiet", at_step=(step, how))
        if how == "SIGKILL":
            assert ended.status == -9
        else:
            said = f"localsgd: interrupted; go on with: localsgd resume {run}\n"
            assert (ended.status, ended.err) == (130, said)
        assert Folder.open(run).summary() is None
        assert command("resume", run, "--quiet").status == 0
        assert same_end(run, whole)


def test_two_processes_give_the_bits_of_one(ranks: Ranks, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first, second = ranks(*2 * [[*RUN, "--out", run]])
    assert (first.status, first.err) == (0, "")
    assert (second.status, second.out, second.err) == (0, "", "")
    assert first.out.count("epoch 3.0") == 1
    assert same_end(run, whole)
    assert Folder.open(run).environment()["processes"] == 2


def test_two_processes_interrupted_and_resumed_by_one(
    command: Command, ranks: Ranks, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    both = {0: (6, "SIGTERM"), 1: (6, "SIGTERM")}
    for ended in ranks(*2 * [[*RUN, "--out", run, "--quiet"]], at_step=both):
        assert ended.status in (130, 3)
        assert ended.err.count("\n") == 1
    assert command("resume", run, "--quiet").status == 0
    assert same_end(run, whole)


@pytest.mark.parametrize("reduction", ["exact", "ordered"])
def test_resumed_by_more_processes_is_said(
    command: Command, ranks: Ranks, tmp_path: Path, reduction: str
) -> None:
    run = tmp_path / "run"
    command("run", *TINY, "--reduction", reduction, "--out", run, at_step=(6, "SIGINT"))
    first, second = ranks(["resume", run], ["resume", run])
    assert (first.status, second.status, second.out) == (0, 0, "")
    said = "Processes: 1 before, 2 now. Sums are taken in another order"
    assert (said in " ".join(first.out.split())) == (reduction == "exact")


def test_a_rank_that_is_killed_is_named_and_the_run_resumed(
    ranks: Ranks, whole: Path, tmp_path: Path
) -> None:
    """In the phase with H = 1, and in the middle of a round of 3."""
    for step in (2, 6):
        run = tmp_path / str(step)
        arguments = [*RUN, "--out", run, "--quiet"]
        first, second = ranks(arguments, arguments, at_step={1: (step, "SIGKILL")})
        assert (first.status, second.status) == (3, -9)
        assert first.err.startswith("localsgd: rank 1 (pid ") or first.err.startswith("rank 1 (pid")
        assert first.err.count("\n") == 1
        again = ["resume", run, "--quiet"]
        assert [ended.status for ended in ranks(again, again)] == [0, 0]
        assert same_end(run, whole)


def test_a_rank_that_hangs_is_named(ranks: Ranks, tmp_path: Path) -> None:
    arguments = [*RUN, "--out", tmp_path / "run", "--quiet", "--heartbeat-seconds", "4"]
    first, second = ranks(arguments, arguments, at_step={1: (6, "SIGSTOP")})
    assert (first.status, second.status) == (3, None)
    assert "rank 1 (pid " in first.err
    assert "has not been heard of for" in first.err
    assert first.err.count("\n") == 1


def test_ranks_that_were_started_differently(ranks: Ranks, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = [*RUN, "--out", run]
    ended = ranks([*arguments, "--lr", "0.1"], [*arguments, "--lr", "0.2"])
    said = "localsgd: rank 1 was started with a different configuration from rank 0: lr 0.1 / 0.2"
    for rank in ended:
        assert rank.status == 2
        assert rank.err.startswith(said)
        assert rank.err.count("\n") == 1
    elsewhere = ranks(arguments, [*RUN, "--out", tmp_path / "elsewhere"])
    for rank in elsewhere:
        assert rank.status == 2
        assert f"out {run} / {tmp_path / 'elsewhere'} (rank 0 / rank 1)" in rank.err
    assert list(tmp_path.iterdir()) == []


def test_workers_that_do_not_divide(ranks: Ranks, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for rank in ranks(*3 * [[*RUN, "--out", run]]):
        assert rank.status == 2
        assert "4 workers (4) cannot be spread evenly over 3 processes" in rank.err
        assert rank.err.count("\n") == 1
    assert not run.exists()


def test_ranks_without_a_port(ranks: Ranks, tmp_path: Path) -> None:
    """As torchrun gives them with --master-port 0."""
    for rank in ranks(*2 * [[*RUN, "--out", tmp_path / "run"]], port=0):
        assert (rank.status, rank.out) == (2, "")
        assert "MASTER_PORT=0 is not a port that processes can connect to: start" in rank.err


def test_ranks_find_the_folder_there(ranks: Ranks, whole: Path) -> None:
    for rank in ranks(*2 * [[*RUN, "--out", whole]]):
        assert rank.status == 2
        assert "exists already" in rank.err
    asked = ranks(*2 * [[*RUN, "--out", whole.parent / "new", "--processes", 2]])
    assert "--processes can't be used under torchrun or srun" in asked[1].err


def test_first_metrics_are_readable_at_any_time(whole: Path) -> None:
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [4, 8, 12]
