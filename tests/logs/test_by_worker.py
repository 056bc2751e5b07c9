"""What evaluations say of each worker where a logger is asked for: own models and drift."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from localsgd.logs import JsonLines
from localsgd.train import Limits
from localsgd.train import Run as InPython
from localsgd.train.engine import trunk
from localsgd.train.engine.execution import Execution, prepare
from localsgd.train.engine.observer import Observer, Observers
from tests.logs.recorder import Recorder
from tests.runs import Killed, Silent, digits, killed_at, same, tiny, worker_states

pytestmark = pytest.mark.timeout(300)

BY_WORKER = ("drift", "local_accuracy")
WAYS: dict[str, dict[str, Any]] = {
    "local": {"method": "local", "local_steps": (5,)},
    "post-local": {},
    "blocks": {"topology": "2x2", "method": "hierarchical", "local_steps": (2, 2)},
    "compressed": {"method": "local", "compression": "sign"},
    "delayed": {"method": "local", "delay": 1},
    "gossip": {"method": "local", "neighbours": "ring"},
    "float64": {"method": "local", "precision": "float64"},
    "alone": {"workers": 1, "batch": 20, "method": "local"},
    "growing batch": {"method": "batch-growth"},
}


def trained(path: Path, by_worker: bool = True, **settings: Any) -> Execution:
    execution = prepare(tiny(**settings), digits(), path, Observer(), by_worker=by_worker)
    execution.train()
    return execution


def by_hand(rows: Tensor) -> dict[str, float]:
    """Distances of float64 rows [K, n] to their mean, and of every two, in plain sums."""
    mean = sum(rows) / len(rows)
    away = [float((row - mean).square().sum().sqrt()) for row in rows]
    pairs = [float((a - b).square().sum().sqrt()) for a, b in itertools.combinations(rows, 2)]
    return {"to_mean": sum(away) / len(away), "between": sum(pairs) / max(1, len(pairs))}


@pytest.mark.parametrize("way", [name for name in WAYS if name != "growing batch"])
def test_drift_is_that_of_the_workers_before_they_synchronise(way: str, tmp_path: Path) -> None:
    seen: dict[int, Tensor] = {}
    execution = prepare(tiny(**WAYS[way]), digits(), tmp_path, Observer(), by_worker=True)
    workers = execution.assembly.workers
    workers.around_steps(
        after=lambda: seen.update({workers.step + 1: torch.clone(workers.params).double()})
    )
    execution.train()
    rows = execution.folder.metrics()
    assert [row["step"] for row in rows] == [4, 8, 12]
    for row in rows:
        wanted = by_hand(seen[row["step"]])
        assert row["drift"] == pytest.approx(wanted, rel=1e-11, abs=1e-12)
    apart = [row["drift"]["to_mean"] > 1e-4 for row in rows]
    assert apart == {"alone": [False] * 3, "post-local": [False, True, True]}.get(way, [True] * 3)


def test_workers_whose_gradients_are_added_up_are_not_apart(tmp_path: Path) -> None:
    for row in trained(tmp_path, **WAYS["growing batch"]).folder.metrics():
        assert row["drift"] == {"to_mean": 0.0, "between": 0.0}


@pytest.mark.parametrize("chunk", [1, 1000])
def test_drift_in_pieces(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(tmp_path / "whole", model="mlp-8").folder.metrics()
    monkeypatch.setattr("localsgd.train.engine.evaluation.CHUNK", chunk)
    pieces = trained(tmp_path / "pieces", model="mlp-8").folder.metrics()
    for row, other in zip(whole, pieces, strict=True):
        assert row["drift"] == pytest.approx(other["drift"], rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_it_changes_no_bit_and_no_other_number(way: str, tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", by_worker=False, **WAYS[way])
    seen = trained(tmp_path / "seen", **WAYS[way])
    assert same(worker_states(plain.assembly), worker_states(seen.assembly))
    one, other = plain.folder, seen.folder
    assert one.model.read_bytes() == other.model.read_bytes()
    assert (one.path / "run.json").read_bytes() == (other.path / "run.json").read_bytes()
    for row, seen_row in zip(one.metrics(), other.metrics(), strict=True):
        assert {*seen_row} - {*row} == {*BY_WORKER}
        for timed in (row, seen_row):
            timed.pop("seconds")
            timed["ledger"] = [[e["calls"], e["bytes"], e["arrived"]] for e in timed["ledger"]]
        assert {**seen_row, **row} == seen_row


def test_local_models_are_left_out_where_the_run_says_never(tmp_path: Path) -> None:
    for row in trained(tmp_path, evaluate_local="never").folder.metrics():
        assert "drift" in row
        assert "local_accuracy" not in row


def test_local_accuracy_is_that_of_evaluate_local_always(tmp_path: Path) -> None:
    seen = trained(tmp_path / "seen").folder.metrics()
    always = trained(tmp_path / "always", by_worker=False, evaluate_local="always")
    assert [row["local_accuracy"] for row in seen] == [
        row["local_accuracy"] for row in always.folder.metrics()
    ]


def test_workers_that_have_diverged(tmp_path: Path) -> None:
    execution = prepare(tiny(lr=9e8), digits(), tmp_path, JsonLines(tmp_path), by_worker=True)
    execution.train()
    assert execution.folder.metrics()[-1]["drift"] == {"to_mean": None, "between": None}
    assert "drift" not in (tmp_path / "log.jsonl").read_text().splitlines()[-1]


def test_cut_off_and_resumed(tmp_path: Path) -> None:
    def opened(name: str, *seen: Observer, resuming: bool = False) -> Execution:
        path = tmp_path / name
        observers = Observers(JsonLines(path), *seen)
        return prepare(tiny(), digits(), path, observers, resuming=resuming, by_worker=True)

    whole = opened("whole")
    whole.train()
    with pytest.raises(Killed):
        opened("cut", Silent(killed_at(9))).train()
    cut = opened("cut", resuming=True)
    cut.train()
    assert same(worker_states(whole.assembly), worker_states(cut.assembly))
    rows, others = (execution.folder.metrics() for execution in (whole, cut))
    for name in BY_WORKER:
        assert [row[name] for row in rows] == [row[name] for row in others]


def test_the_first_phase_that_runs_of_a_sweep_share_has_it_too(tmp_path: Path) -> None:
    alone = trained(tmp_path / "alone").folder.metrics()
    for name, by_worker in (("plain", False), ("seen", True), ("again", True)):
        logger = Recorder(tmp_path / name)
        execution = prepare(tiny(), digits(), tmp_path / name, logger, by_worker=by_worker)
        trunk.start(execution, tmp_path / "scratch")
        assert execution.assembly.workers.step == 4
        execution.train()
        rows = execution.folder.metrics()
        for key in BY_WORKER:
            wanted = [row[key] for row in alone] if by_worker else [None] * 3
            assert [row.get(key) for row in rows] == wanted
        told = [numbers for _, numbers in logger.events[1:4]]
        assert ["drift_between" in numbers for numbers in told] == [by_worker] * 3


def test_it_can_be_asked_for_in_python(tmp_path: Path) -> None:
    run = InPython("digits", "mlp-8", train_samples=80, workers=2, batch=5, epochs=1)
    found = run.train(tmp_path / "run", progress=False, limits=Limits(by_worker=True))
    assert {*BY_WORKER} <= {*found.rows[0]}
    assert torch.isfinite(torch.tensor(list(found.rows[0]["drift"].values()))).all()
