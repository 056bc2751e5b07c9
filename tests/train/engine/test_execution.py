from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from localsgd.errors import UserError
from localsgd.train.config.plan import Plan
from localsgd.train.engine import checkpoints
from localsgd.train.engine.execution import Execution, Interrupted, evaluation_steps, prepare
from localsgd.train.engine.run_folder import Folder
from tests.distributed import harness
from tests.runs import (
    SAMPLES,
    STEPS,
    Killed,
    Silent,
    digits,
    killed_at,
    prepared,
    same,
    signalled_at,
    tiny,
    worker_states,
)

pytestmark = pytest.mark.timeout(300)

CUT_SHORT = {"epochs": 2.9, "switch": "step:3"}
RUNS: dict[str, dict[str, Any]] = {
    "gradients, then models": {},
    "models alone": {"average": "models"},
    "hierarchy": {"method": "hierarchical", "topology": "2x2", "local_steps": (2, 2)},
    "adam": {"optimizer": "adamw", "method": "local", "prefetch": True},
}


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, [4, 8, 12]),
        ({"evaluate_every": 0.5}, [2, 4, 6, 8, 10, 12]),
        ({"evaluate_every": 2.0}, [8, 12]),
        ({"evaluate_every": 9.0}, [12]),
        ({"evaluate_every": 1e-6}, list(range(1, 13))),
        ({"evaluate_every": 1.1}, [5, 9, 12]),  # 4.4 and 8.8
        ({"epochs": 2.9, "switch": "epoch:1"}, [4, 8, 11]),
        ({"workers": 3, "batch": 7, "switch": "epoch:1"}, [4, 8, 11]),  # 3.8 steps an epoch
    ],
)
def test_evaluations_are_numbered_and_end_with_the_run(settings: dict, steps: list[int]) -> None:
    found = evaluation_steps(Plan(tiny(**settings), SAMPLES))
    assert list(found) == steps
    assert list(found.values()) == list(range(1, len(steps) + 1))


def finished(settings: dict, path: Path) -> Execution:
    execution = prepared(tiny(**settings), path)
    execution.train()
    return execution


def records(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any], bytes]:
    """Metrics and summary without seconds, and the final model."""
    folder = Folder.open(path)
    return (
        [timeless(row) for row in folder.metrics()],
        timeless(folder.summary() or {}),
        folder.model.read_bytes(),
    )


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    ledger = [{k: v for k, v in entry.items() if k != "seconds"} for entry in row["ledger"]]
    return {
        **{k: v for k, v in row.items() if k not in ("seconds", "paused")},
        "ledger": ledger,
    }


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(
    ("how", "steps"),
    [("SIGINT", (1, 4, 5, 6, 9, STEPS)), ("SIGTERM", (6,)), ("killed", (2, 6, 10))],
)
def test_cut_off_at_any_step_and_resumed_to_the_same_bits(
    name: str, how: str, steps: tuple[int, ...], tmp_path: Path
) -> None:
    """In the phase with H = 1, in the middle of a round, at its end, at an evaluation."""
    settings = RUNS[name]
    whole = finished(settings, tmp_path / "whole")
    for step in steps:
        path = tmp_path / str(step)
        stop = killed_at(step) if how == "killed" else signalled_at(step, signal.Signals[how])
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        with pytest.raises((Killed, Interrupted)) as ended:
            prepared(tiny(**settings), path, at_step=stop).train()
        if how != "killed":
            assert str(ended.value) == f"interrupted; go on with: localsgd resume {path}"
            assert checkpoints.checkpoints(path / "checkpoints")[-1].name == f"step-{step:08d}"
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        again = prepared(tiny(**settings), path, resuming=True)
        assert again.assembly.workers.step == (step if how != "killed" else (step - 1) // 4 * 4)
        again.train()
        assert same(worker_states(again.assembly), worker_states(whole.assembly)), step
        assert records(path) == records(tmp_path / "whole"), step


def test_cut_off_again_and_again(tmp_path: Path) -> None:
    whole = finished(CUT_SHORT, tmp_path / "whole")
    path, resuming = tmp_path / "cut", False
    for step in range(1, whole.assembly.plan.steps):
        stop = signalled_at(step, signal.SIGINT)
        execution = prepared(tiny(**CUT_SHORT), path, at_step=stop, resuming=resuming)
        with pytest.raises(Interrupted):
            execution.train()
        resuming = True
    last = prepared(tiny(**CUT_SHORT), path, resuming=True)
    last.train()
    assert same(worker_states(last.assembly), worker_states(whole.assembly))
    assert records(path) == records(tmp_path / "whole")
    steps = [row["step"] for row in last.folder.metrics()]
    assert steps == [4, 8, 11]


def test_ctrl_c_ends_nothing_where_it_is_ignored(tmp_path: Path) -> None:
    """As in the background of a script, whose terminal sends it to all."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = prepared(tiny(), tmp_path / "run", at_step=signalled_at(3, signal.SIGINT))
        assert run.train() is not None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert Folder.open(tmp_path / "run").summary() is not None


def test_interrupted_twice_while_it_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = finished({}, tmp_path / "whole")
    write = checkpoints._write

    def interrupted(path: Path, content: Any) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        write(path, content)

    path = tmp_path / "cut"
    monkeypatch.setattr(checkpoints, "_write", interrupted)
    with pytest.raises(Interrupted):
        prepared(tiny(), path).train()
    monkeypatch.undo()
    assert [found.name for found in checkpoints.checkpoints(path / "checkpoints")] == [
        "step-00000004"
    ]
    again = prepared(tiny(), path, resuming=True)
    again.train()
    assert same(worker_states(again.assembly), worker_states(whole.assembly))


def test_killed_between_a_row_and_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished({}, tmp_path / "whole")

    def dies(self: Execution) -> None:
        raise Killed

    execution = prepared(tiny(), tmp_path / "cut", at_step=lambda step: armed(step))

    def armed(step: int) -> None:
        if step == 8:
            monkeypatch.setattr(Execution, "save", dies)

    with pytest.raises(Killed):
        execution.train()
    monkeypatch.undo()
    assert [row["step"] for row in execution.folder.metrics()] == [4, 8]
    again = prepared(tiny(), tmp_path / "cut", resuming=True)
    assert [row["step"] for row in again.folder.metrics()] == [4]
    again.train()
    assert records(tmp_path / "cut") == records(tmp_path / "whole")


def test_killed_after_the_last_step_only_the_end_is_made_again(tmp_path: Path) -> None:
    finished({}, tmp_path / "whole")
    path = tmp_path / "cut"
    execution = prepared(tiny(), path)
    execution._finish = lambda: {}  # type: ignore[method-assign]
    execution.train()
    assert Folder.open(path).summary() is None
    prepared(tiny(), path, resuming=True).train()
    assert records(path) == records(tmp_path / "whole")


def test_checkpoints_are_as_far_apart_as_asked(tmp_path: Path) -> None:
    seen = []
    execution = prepared(
        tiny(evaluate_every=0.5),
        tmp_path / "run",
        checkpoint_every=4,
        at_step=lambda step: seen.append(
            len(checkpoints.checkpoints(tmp_path / "run/checkpoints"))
        ),
    )
    execution.train()
    # Seen before the evaluation of the same step. The fourth is at step 8; the end has one too.
    assert seen == [0] * 8 + [1] * 4
    assert [path.name for path in checkpoints.checkpoints(execution.folder.checkpoints)] == [
        "step-00000008",
        "step-00000012",
    ]


def test_evaluating_changes_no_bit_of_training(tmp_path: Path) -> None:
    rare = finished({"evaluate_every": 9.0, "evaluate_local": "never"}, tmp_path / "rare")
    often = {"evaluate_every": 0.25, "evaluate_local": "always", "batch_norm": "recalibrated"}
    frequent = finished(often, tmp_path / "frequent")
    assert len(frequent.folder.metrics()) == STEPS
    assert same(worker_states(rare.assembly), worker_states(frequent.assembly))


def test_evaluating_and_saving_are_no_time_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that stands still but for pauses."""
    now, told = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def tell(step: int) -> None:
        if step == STEPS:
            told.extend(execution.assembly.observations.signals(0.1, 0.0)[:, 2].tolist())

    @contextmanager
    def pausing(what: str) -> Generator[None]:
        now[0] += 100.0
        yield

    execution = prepared(tiny(), tmp_path / "run", at_step=tell)
    monkeypatch.setattr(execution.observer, "pausing", pausing)
    execution.train()
    assert now[0] >= 400.0
    assert told == [0.0] * 4
    assert execution.seconds == 0.0


def test_what_a_run_writes_down(tmp_path: Path) -> None:
    execution = finished({"evaluate_local": "always"}, tmp_path)
    rows, summary = execution.folder.metrics(), execution.folder.summary()
    assert summary is not None
    assert [row["epoch"] for row in rows] == [1.0, 2.0, 3.0]
    # 4 rounds of one step, then 4, 7, 10 and the end.
    assert [row["syncs"] for row in rows] == [[4], [5], [7]]
    length = execution.assembly.workers.layout.length
    assert [row["ledger"][0]["calls"] >= row["syncs"][0] for row in rows] == [True] * 3
    assert rows[0]["ledger"][0]["bytes"] >= 4 * 4 * length
    assert summary["syncs"] == [7]
    assert (summary["steps"], summary["samples"]) == (12, 240)
    assert summary["test_accuracy"] == rows[-1]["test_accuracy"]
    assert summary["local_accuracy"] == rows[-1]["local_accuracy"]
    assert summary["best_accuracy"] == max(row["test_accuracy"] for row in rows)
    assert rows[0]["seconds"] < rows[1]["seconds"] <= summary["seconds"]
    assert summary["paused"].keys() == {"evaluating", "saving"}
    assert min(summary["paused"].values()) > 0
    assert json.loads((tmp_path / "environment.json").read_text())["processes"] == 1


def test_train_loss_is_the_mean_over_workers_and_steps(tmp_path: Path) -> None:
    seen: list[float] = []
    execution = prepared(tiny(), tmp_path)
    loss_of = execution.assembly.workers._loss

    def watched(model, worker: int, step: int) -> torch.Tensor:
        loss = loss_of(model, worker, step)
        seen.append(loss.item())
        return loss

    execution.assembly.workers._loss = watched
    execution.train()
    assert len(seen) == 4 * STEPS
    for number, row in enumerate(execution.folder.metrics()):
        part = seen[16 * number : 16 * (number + 1)]
        assert row["train_loss"] == pytest.approx(sum(part) / 16, abs=1e-9)


def in_processes(settings: dict, path: str, stop: tuple[int, int] | None, resuming: bool) -> dict:
    """One of several processes: the states of its workers once the run has ended or was stopped."""
    execution = prepared(
        tiny(**settings),
        Path(path),
        at_step=signalled_at(*stop) if stop else lambda step: None,
        resuming=resuming,
    )
    if stop:
        with pytest.raises(Interrupted):
            execution.train()
        return {}
    execution.train()
    return worker_states(execution.assembly)


def test_interrupted_in_two_processes_and_resumed_in_one_two_or_four(tmp_path: Path) -> None:
    hostings = (1, 2, 4)
    for name, stop in (("gradients, then models", 7), ("hierarchy", 7), ("models alone", 3)):
        settings = RUNS[name]
        whole = finished(settings, tmp_path / name)
        for processes in hostings:
            path = str(tmp_path / f"{name}-{processes}")
            harness.run(2, in_processes, settings, path, (stop, 15), False, seconds=240)
            steps = [row["step"] for row in Folder.open(Path(path)).metrics()]
            assert steps == ([4] if stop == 7 else [])
            if processes == 1:
                ends = in_processes(settings, path, None, True)
            else:
                parts = harness.run(
                    processes, in_processes, settings, path, None, True, seconds=240
                )
                ends = {worker: found for part in parts for worker, found in part.items()}
            assert same(ends, worker_states(whole.assembly)), (name, processes)
            assert records(Path(path))[0][-1]["step"] == STEPS
            assert records(Path(path))[2] == records(tmp_path / name)[2]
        hostings = (1,)


def other_weights(path: str) -> str:
    run = tiny(seed=torch.distributed.get_rank())
    with pytest.raises(UserError) as refused:
        prepared(run, Path(path))
    return str(refused.value)


def test_processes_that_start_from_different_weights_are_refused(tmp_path: Path) -> None:
    said = harness.run(2, other_weights, str(tmp_path / "run"), seconds=240)
    assert said[0] == said[1]
    assert said[0].startswith("rank 1 was started with a different starting point from rank 0")
    assert not (tmp_path / "run").exists()


def test_less_data_than_a_step_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    """As with images of one's own in the place of a task's, which was asked how many it has."""
    with pytest.raises(UserError, match="less than one step of 20; train for longer"):
        prepare(tiny(epochs=0.5, switch="first-decay"), digits(30), tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_needs_no_file_of_starting_weights_any_more(tmp_path: Path) -> None:
    first = finished({}, tmp_path / "first")
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(first.folder.model.read_bytes())
    whole = finished({"init": str(weights)}, tmp_path / "whole")
    assert not same(worker_states(first.assembly), worker_states(whole.assembly))
    again = tiny(init=str(weights))
    with pytest.raises(Killed):
        prepared(again, tmp_path / "again", at_step=killed_at(6)).train()
    weights.unlink()
    resumed = prepared(again, tmp_path / "again", resuming=True)
    resumed.train()
    assert same(worker_states(resumed.assembly), worker_states(whole.assembly))
    with pytest.raises(UserError, match="is not there"):
        prepared(again, tmp_path / "new")
