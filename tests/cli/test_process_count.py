"""How many processes carry a run out quickest, and in which format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from localsgd.averaging.topology import Topology
from localsgd.cli import process_count
from localsgd.cli.process_count import choose_processes, fits, quickest
from localsgd.train import Run, add
from localsgd.train.config.blame import PartFailed
from localsgd.train.config.parts import OUTSIDE
from localsgd.train.engine.run_folder import Folder
from tests.cli.conftest import TINY, Command
from tests.cli.test_mistakes import refused
from tests.runs import digits, tiny


@pytest.mark.parametrize(
    ("topology", "possible"),
    [("4", [1, 2, 4]), ("4x3", [1, 2, 4, 12]), ("2+3", [1, 5])],
)
def test_processes_host_whole_blocks_or_blocks_whole_processes(
    topology: str, possible: list[int]
) -> None:
    assert [p for p in range(1, 13) if fits(Topology.parse(topology), p)] == possible


@pytest.mark.parametrize(
    ("step", "chosen"),
    [
        ({1: 1.0, 2: 1.0, 4: 1.0}, 4),  # threads are of no use
        ({1: 1.0, 2: 0.5, 4: 0.2}, 1),  # threads are better than processes
        ({1: 1e-4, 2: 1e-4, 4: 1e-4}, 1),  # over before processes have started
    ],
)
def test_it_takes_what_ends_first(
    monkeypatch: pytest.MonkeyPatch, step: dict[int, float], chosen: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(process_count, "cores", lambda: 4)
    monkeypatch.setattr(process_count, "step_seconds", lambda run, task, threads: step[threads])
    wanted = tiny(epochs=100.0)
    choice = choose_processes([wanted], digits())
    assert choice.processes == chosen
    assert choice.threads == 4 // chosen
    mixed = choose_processes([tiny(topology="2+1+1", local_steps=(1, 2)), wanted], digits())
    assert mixed.processes in (1, 4)


def test_a_step_is_measured_with_the_threads_that_are_asked_for() -> None:
    before = torch.get_num_threads()
    assert 0 < process_count.step_seconds(tiny(), digits(), threads=1) < 10
    assert torch.get_num_threads() == before


def test_a_part_that_fails_while_a_step_is_measured_is_named() -> None:
    """As by the run itself; forecasts of sweeps measure the same way."""
    add("models", "too-wide", lambda task: nn.Sequential(nn.Flatten(), nn.Linear(7, 10)))
    try:
        wanted = Run(model="too-wide", workers=2, epochs=1).settings
        with pytest.raises(PartFailed, match="the model too-wide of this program failed: Runt"):
            choose_processes([wanted], digits())
        with pytest.raises(PartFailed, match="the model too-wide of this program failed: Runt"):
            process_count.step_seconds(wanted, digits(), threads=1)
    finally:
        OUTSIDE["model"]._added.clear()


def test_another_format_must_be_worth_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"float32": 1.0, "float32, channels_last": 0.97, "bfloat16": 3.0}
    measured = lambda run, task, threads: times.get(process_count._name(run), 2.0)  # noqa: E731
    monkeypatch.setattr(process_count, "step_seconds", measured)
    assert quickest(tiny(), digits(), Console()) == tiny()
    times["float32, channels_last"] = 0.9
    assert quickest(tiny(), digits(), Console()) == tiny(channels_last=True)
    assert "Format: float32, channels_last" in capsys.readouterr().out


@pytest.mark.parametrize("given", [{"precision": "float64"}, {"channels_last": True}])
def test_a_format_that_was_given_stays(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, object]
) -> None:
    """Whatever would be quicker."""
    quick = {"float32": 0.1, "bfloat16": 0.1, "float64": 0.1}
    measured = lambda run, task, threads: quick.get(process_count._name(run), 1.0)  # noqa: E731
    monkeypatch.setattr(process_count, "step_seconds", measured)
    found = quickest(tiny(**given), digits(), Console(quiet=True))
    assert all(getattr(found, name) == value for name, value in given.items())


def test_a_run_by_auto_says_what_was_chosen(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = command("run", *TINY, "--out", out, "--processes", "auto")
    assert ended.status == 0, ended
    assert ended.out.count("Started by auto: 1 process of") == 1
    assert Folder.open(out).environment()["processes"] == 1


@pytest.mark.parametrize("wrong", ["many", "0"])
def test_bad_numbers(command: Command, tmp_path: Path, wrong: str) -> None:
    says = {"many": "--processes 'many' is not understood", "0": "--processes 0 is too small"}[
        wrong
    ]
    refused(command, says, "run", *TINY, "--out", tmp_path / "run", "--processes", wrong)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command_name", ["run", "compare"])
def test_processes_that_do_not_fit_are_refused_before_any_starts(
    command: Command, tmp_path: Path, command_name: str
) -> None:
    out = tmp_path / "out"
    arguments = (command_name, *TINY, "--out", out, "--processes", 100_000)
    refused(command, "4 workers (4) cannot be spread evenly over 100,000 processes", *arguments)
    assert not out.exists()


@pytest.mark.parametrize(
    ("given", "threads"), [("3", 3), ("", 2), ("0", 2), ("4,2", 2), ("²", 2), ("9" * 5000, 2)]
)
def test_threads_are_a_number_that_is_given_or_a_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, given: str, threads: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr(process_count, "cores", lambda: 4)
    assert process_count.threads_of(2) == threads
