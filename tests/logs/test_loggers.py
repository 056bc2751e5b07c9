"""What loggers are told of a run, and what services then have."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from localsgd.errors import UserError
from localsgd.logs import JsonLines, Logger, MLflow, TensorBoard, WeightsAndBiases
from localsgd.logs.choice import loggers_of, names_of
from localsgd.logs.logger import Numbers
from localsgd.logs.tracked import Tracked
from localsgd.results import rows
from localsgd.train.engine.execution import Execution, prepare
from localsgd.train.engine.observer import Observer, Observers
from localsgd.train.engine.watching import watch
from tests.logs.recorder import Recorder
from tests.runs import Killed, Silent, digits, killed_at, tiny

RUN = tiny(evaluate_local="always")
"""Evaluated after 4, 8 and 12 steps; drift is that of the rounds which end at 7, 10 and 12."""


def execution(path: Path, *observers: Observer, resuming: bool = False) -> Execution:
    watching = watch("drift", path)
    seen = Observers(*observers)
    return prepare(RUN, digits(), path, seen, resuming=resuming, watching=watching)


def test_what_is_logged(tmp_path: Path) -> None:
    logger = Recorder(tmp_path)
    execution(tmp_path, logger).train()
    begun, *told, ended = logger.events
    assert begun == ("begin", json.loads((tmp_path / "run.json").read_text()))
    assert ended == ("end",)
    assert [step for step, _ in told] == [4, 7, 8, 10, 12, 12, 12]
    evaluated = {step: numbers for step, numbers in told if "test_loss" in numbers}
    long = rows([tmp_path])
    assert [row["step"] for row in long] == [4, 8, 12]
    for row in long:
        numbers = evaluated[row["step"]]
        assert all(numbers[k] == row[k] for k in numbers if k != "training_seconds")
        for name in (
            "train_loss",
            "test_accuracy_fraction",
            "local_accuracy_fraction",
            "learning_rate",
            "local_steps_level_1",
            "syncs_level_1",
            "sent_bytes_level_1",
            "waited_seconds_level_1",
        ):
            assert name in numbers
    assert [evaluated[step]["local_steps_level_1"] for step in (4, 8, 12)] == [1, 3, 3]
    drifts = [numbers for _, numbers in told if "drift_to_mean" in numbers]
    assert len(drifts) == 3
    assert all(numbers["drift_to_mean"] > 0 for numbers in drifts)
    assert told[-1] == (12, {"best_accuracy_fraction": long[-1]["best_accuracy_fraction"]})


def cut_off_and_resumed(path: Path, kind: type[Logger]) -> None:
    """Cut off after 9 steps, and gone on with from the checkpoint after 8."""
    logger = kind(path)
    with pytest.raises(Killed):
        execution(path, logger, Silent(killed_at(9))).train()
    logger.close()
    execution(path, kind(path), resuming=True).train()


def test_json_lines_of_a_resumed_run_are_those_of_an_undisturbed_one(tmp_path: Path) -> None:
    execution(tmp_path / "whole", JsonLines(tmp_path / "whole")).train()
    cut_off_and_resumed(tmp_path / "cut", JsonLines)
    whole, cut = (
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("whole", "cut")
    )
    assert [row["step"] for row in whole] == [4, 7, 8, 10, 12, 12, 12]

    def untimed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Without the drift of the round that was cut off, which nobody saw from its start."""
        told = [row for row in found if row["step"] != 10]
        return [{k: v for k, v in row.items() if "seconds" not in k} for row in told]

    assert untimed(cut) == untimed(whole)


@pytest.mark.filterwarnings("ignore")
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    cut_off_and_resumed(tmp_path, TensorBoard)
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    for name in ("test_accuracy_fraction", "sent_bytes_level_1", "local_steps_level_1"):
        told = {event.step: event.value for event in found.Scalars(name)}
        assert told == pytest.approx({row["step"]: row[name] for row in rows([tmp_path])})
    assert [event.step for event in found.Scalars("drift_to_mean")] == [7, 12]


@pytest.mark.filterwarnings("ignore")  # what the service warns of itself
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    cut_off_and_resumed(tmp_path / "run", MLflow)
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    found = client.get_run(json.loads((tmp_path / "run" / "mlflow.json").read_text())["id"])
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params["local_steps"] == "[3]"
    told = client.get_metric_history(found.info.run_id, "sent_bytes_level_1")
    assert [(each.step, each.value) for each in told] == [
        (row["step"], row["sent_bytes_level_1"]) for row in rows([tmp_path / "run"])
    ]


@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    try:
        cut_off_and_resumed(tmp_path, WeightsAndBiases)
    finally:
        wandb.teardown()
    written = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    identity = json.loads((tmp_path / "wandb.json").read_text())["id"]
    assert [path.stem for path in written] == [f"run-{identity}"] * 2
    assert b"test_accuracy_fraction" in written[0].read_bytes()


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [logger] = loggers_of("jsonl", tmp_path)
    assert isinstance(logger, JsonLines)
    with pytest.raises(UserError, match="unknown logger 'json'; nearest: jsonl"):
        names_of("json")
    monkeypatch.setattr("localsgd.logs.choice.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'localsgd\[wandb\]', or use --log jsonl"):
        names_of("jsonl,wandb")


def test_nothing_is_imported_unless_asked_for() -> None:
    code = (
        "import sys, localsgd.logs.choice as c; c.names_of('jsonl'); "
        "print({'tensorboard', 'wandb', 'mlflow', 'pandas', 'polars', 'pyarrow'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout == "set()\n"


class Service(Tracked):
    name = "service"

    def open(self, identity: str | None, settings: Mapping[str, Any]) -> str:
        return identity or "new"

    def tell(self, step: int, numbers: Numbers) -> None:
        pass


@pytest.mark.parametrize(
    "kept",
    [b"", b"{}", b"[1]", b"\xff", b"[" * 200_000, b'{"id": "a", "step": 1e400}', b'{"id": 5}'],
    ids=["empty", "nothing", "list", "no text", "deep", "infinite", "number"],
)
def test_a_damaged_id_is_refused_in_one_line(tmp_path: Path, kept: bytes) -> None:
    (tmp_path / "service.json").write_bytes(kept)
    with pytest.raises(UserError, match=r"service\.json is ") as refused:
        Service(tmp_path).begin({})
    assert len(str(refused.value).splitlines()) == 1


def test_an_id_is_kept(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.begin({})
    service.log(4, {"epoch": 1.0})
    assert json.loads((tmp_path / "service.json").read_text()) == {"id": "new", "step": 4}
    Service(tmp_path).begin({})


@pytest.mark.parametrize(("kind", "name"), [(TensorBoard, "tensorboard"), (JsonLines, "log.jsonl")])
def test_nothing_is_logged_through_a_link(tmp_path: Path, kind: type[Logger], name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "events.out.tfevents.1").write_text("precious")
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(elsewhere)
    (run / f"{name}.partial").symlink_to(elsewhere / "events.out.tfevents.1")
    if kind is TensorBoard:
        pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
        with pytest.raises(UserError, match="tensorboard is a link; remove it"):
            kind(run).begin({})
    else:
        kind(run).begin({})
        kind(run).log(4, {"epoch": 1.0})
        assert (run / name).read_text() == '{"step": 4, "epoch": 1.0}\n'
    assert [path.read_text() for path in elsewhere.iterdir()] == ["precious"]
