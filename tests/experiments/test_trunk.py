from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from experiments import store
from experiments.engine import Place
from experiments.training import TrainJob, data
from localsgd.errors import UserError
from localsgd.schedule.fixed import piecewise, post_local
from localsgd.train.config.complete import complete_run
from localsgd.train.config.methods import METHODS, Method
from localsgd.train.config.plan import Plan
from localsgd.train.config.run import Run
from localsgd.train.engine import trunk
from localsgd.train.engine.execution import prepare
from localsgd.train.engine.observer import Observer

GROUND: dict[str, Any] = {
    "task": "digits",
    "model": "small-cnn-2",
    "train_samples": 320,
    "workers": 4,
    "batch": 8,
    "epochs": 2.0,
    "evaluate_every": 0.5,
}
SWITCHED = {
    "post-local": {"method": "post-local", "local_steps": (3,)},
    "later": {"method": "post-local", "local_steps": (2,), "switch": "fraction:0.75"},
    "between evaluations": {"method": "post-local", "local_steps": (2,), "switch": "step:7"},
    "growing": {"method": "batch-growth", "local_steps": (2,)},
    "growing, with noise": {"method": "batch-growth", "local_steps": (2,), "noise": 1e-3},
    "mini-batch": {"method": "mini-batch"},
    "blocks": {
        "method": "hierarchical-post-local",
        "workers": None,
        "topology": "2x2",
        "local_steps": (2, 2),
    },
    "error feedback": {"method": "ef-sign", "local_steps": (3,)},
}


def job(**settings: Any) -> TrainJob:
    return TrainJob(Run(**{**GROUND, **settings}))


def done(one: TrainJob, scratch: Path) -> dict[str, Any]:
    return {**one.carry_out(Place(scratch)), "seconds": 0}


@pytest.mark.parametrize(
    ("name", "precision"),
    [(name, "float32") for name in SWITCHED] + [("error feedback", "float64")],
)
def test_going_on_from_a_trunk_gives_the_bits_of_an_undisturbed_run(
    name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of all workers, curves, syncs and bytes; the trunk made by another run."""
    settings = {**SWITCHED[name], "precision": precision}
    if name != "mini-batch":
        done(
            job(**{**settings, "local_steps": tuple(5 for _ in settings["local_steps"])}), tmp_path
        )
        trunks = {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pt")}
    branched = done(job(**settings), tmp_path)
    if name != "mini-batch":
        assert {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pt")} == trunks
        assert trunks
    monkeypatch.setattr(trunk, "milestones", lambda plan: [])
    assert done(job(**settings), tmp_path / "alone") == branched


def test_where_runs_share_workers() -> None:
    def steps(**settings: Any) -> list[int]:
        one = job(**settings).run
        task = data(one.task, None, one.train_samples)
        return trunk.milestones(Plan(complete_run(one, task.card), task.train_size))

    assert steps(method="mini-batch") == [10, 15]
    assert steps(method="post-local") == [10]
    assert steps(method="sign") == [10]
    assert steps(method="post-local", switch="step:12") == [10, 12]
    assert steps(method="local") == []
    assert steps(method="slowmo") == []
    assert steps(method="post-local", switch="step:0") == []
    assert steps(method="post-local", switch="step:5", lr_schedule="cyclic", lr_cycles=2) == []


def test_a_method_of_others_shares_workers_only_while_it_is_mini_batch_sgd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may look at the switch for another reason."""
    uses = ("local_steps", "switch")
    later = Method("H = 1 until the switch", lambda h, at: post_local(h, at.switch), uses=uses)
    before = Method("H until the switch", lambda h, at: piecewise({0: h, at.switch: 1}), uses=uses)
    monkeypatch.setitem(METHODS, "later", later)
    monkeypatch.setitem(METHODS, "before", before)
    one = job(method="mini-batch").run
    task = data(one.task, None, one.train_samples)
    plans = [
        Plan(
            complete_run(msgspec.structs.replace(one, method=name, local_steps=(3,)), task.card),
            task.train_size,
        )
        for name in ("later", "before")
    ]
    assert [trunk.milestones(plan) for plan in plans] == [[10], []]


def test_the_time_of_a_trunk_counts_to_its_end(tmp_path: Path) -> None:
    """It ends between two evaluations; the step before its end takes longer than all others."""

    class Slow(Observer):
        def stepped(self, assembly: Any) -> None:
            if assembly.workers.step == 9:
                time.sleep(0.5)

    one = job(method="post-local", local_steps=(2,), evaluate_every=2.0).run
    task = data(one.task, None, one.train_samples)
    run = complete_run(one, task.card)
    execution = prepare(run, task, tmp_path / "run", Observer())
    trunk.start(execution, tmp_path, observer=Slow())
    assert execution.assembly.workers.step == 10
    assert execution.seconds > 0.5


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off after its second evaluation, it starts from there and ends in the same bits."""
    one = job(method="local", local_steps=(2,), evaluate_every=0.25)
    whole = done(one, tmp_path / "whole")

    def pulled(self: trunk.Observer, row: dict[str, Any]) -> None:
        if row["step"] == 13:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(trunk.Observer, "evaluated", pulled)
        with pytest.raises(KeyboardInterrupt):
            done(one, tmp_path / "cut")
    assert list(tmp_path.glob("cut/runs/*/checkpoints/step-*"))
    assert done(one, tmp_path / "cut") == whole
    assert not list(tmp_path.glob("cut/runs/*"))


def test_nothing_of_another_version_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from its trunks nor from a run that it has begun."""

    def pulled(self: trunk.Observer, row: dict[str, Any]) -> None:
        if row["step"] == 15:
            raise KeyboardInterrupt

    one, folders, trunks = job(method="post-local", local_steps=(3,)), [], []
    for code in (store.CODE, store.CODE + 1):
        with monkeypatch.context() as patched:
            patched.setattr(trunk.Observer, "evaluated", pulled)
            patched.setattr(store, "CODE", code)
            with pytest.raises(KeyboardInterrupt):
                done(one, tmp_path)
        folders.append({path.name for path in tmp_path.glob("runs/*")})
        trunks.append({path.name for path in tmp_path.rglob("*.pt")})
    assert [len(found) for found in folders] == [1, 2]
    assert [len(found) for found in trunks] == [1, 2]


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def of_other_parts(path: Path) -> None:
    kept = torch.load(path, weights_only=True)
    del kept["ledger"]
    torch.save(kept, path)


def of_fewer_weights(path: Path) -> None:
    kept = torch.load(path, weights_only=True)
    kept["workers"][1]["params"] = torch.zeros(1)
    torch.save(kept, path)


@pytest.mark.parametrize("damage", [shorter, of_other_parts, of_fewer_weights])
def test_a_damaged_trunk_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    settings = SWITCHED["post-local"]
    done(job(**settings), tmp_path)
    [path] = tmp_path.rglob("*.pt")
    damage(path)
    with pytest.raises(UserError, match=f"{path.name} is damaged.*remove it") as refused:
        done(job(**{**settings, "local_steps": (2,)}), tmp_path)
    assert len(str(refused.value).splitlines()) == 1
    path.unlink()
    done(job(**{**settings, "local_steps": (2,)}), tmp_path)


@pytest.mark.timeout(60)
def test_locks_and_trunks_are_no_links_or_pipes(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lock = tmp_path / "one.lock"
    lock.symlink_to(victim)
    with pytest.raises(UserError, match=r"one\.lock is a link; remove it"), trunk.alone(lock):
        pass
    assert victim.read_text() == "precious"
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(UserError, match=r"one\.lock is a pipe"), trunk.alone(lock):
        pass
    place = tmp_path / "work"
    place.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (place / "trunks").symlink_to(tmp_path / "elsewhere")
    wanted = complete_run(job(**SWITCHED["post-local"]).run, data("digits", None, 320).card)
    execution = prepare(wanted, data("digits", None, 320), tmp_path / "run", Observer())
    with pytest.raises(UserError, match="trunks is a link; remove it"):
        trunk.start(execution, place)
    (place / "trunks").unlink()
    trunk.start(execution, place)
    [*_, made] = sorted((place / "trunks").glob("*.pt"))
    made.unlink()
    made.with_suffix(".partial").symlink_to(victim)
    again = prepare(wanted, data("digits", None, 320), tmp_path / "again", Observer())
    trunk.start(again, place)
    assert victim.read_text() == "precious"
    made.unlink()
    os.mkfifo(made)
    third = prepare(wanted, data("digits", None, 320), tmp_path / "third", Observer())
    with pytest.raises(UserError, match="is a pipe or a device"):
        trunk.start(third, place)


def test_rows_that_are_alike_are_kept_once(tmp_path: Path) -> None:
    """Also in the file: a view is saved with all the memory that it lies in."""
    task = data("digits", None, 320)
    run = complete_run(Run(**{**GROUND, **SWITCHED["post-local"]}), task.card)
    execution = prepare(run, task, tmp_path / "run", Observer())
    first, *others = trunk._frozen(execution)["workers"]
    assert len(others) == 3
    assert all(one["params"] is first["params"] for one in others)
    for tensor in (first["params"], *first["buffers"]):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
