from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from localsgd.errors import PeerLost, UserError
from localsgd.landscape import Hessian, Objective, lanczos
from localsgd.train.config.plan import Plan
from localsgd.train.data.sampling.subset import batches_of
from localsgd.train.engine import watching
from localsgd.train.engine.assembly import Assembly
from localsgd.train.engine.evaluation import averaged_model
from localsgd.train.engine.execution import Execution, Interrupted
from localsgd.train.engine.watching import FILE, AtEpochs, Watching, records, watch, watched
from tests.runs import STEPS, digits, prepared, same, signalled_at, tiny, worker_states

pytestmark = pytest.mark.timeout(300)

EVERYTHING = "lambda_max:1:40,noise:1.5:40,drift"


def finished(path: Path, what: str = "", **settings: Any) -> Execution:
    execution = prepared(tiny(**settings), path, watching=watch(what, path))
    execution.train()
    return execution


def of(path: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in records(path) if record["kind"] == kind]


def test_it_changes_no_bit_and_no_record(tmp_path: Path) -> None:
    plain = finished(tmp_path / "plain", model="small-cnn-4")
    seen = finished(tmp_path / "seen", EVERYTHING, model="small-cnn-4")
    assert same(worker_states(plain.assembly), worker_states(seen.assembly))
    one, other = (e.folder for e in (plain, seen))
    assert one.model.read_bytes() == other.model.read_bytes()
    assert (one.path / "run.json").read_bytes() == (other.path / "run.json").read_bytes()
    assert not (one.path / FILE).exists()
    for row, seen_row in zip(one.metrics(), other.metrics(), strict=True):
        for key in ("test_loss", "train_loss", "syncs"):
            assert row[key] == seen_row[key]
        assert [e["bytes"] for e in row["ledger"]] == [e["bytes"] for e in seen_row["ledger"]]


def test_when_what_is_measured(tmp_path: Path) -> None:
    """4 steps an epoch; rounds of 3 from step 4, the last of 2."""
    finished(tmp_path, EVERYTHING)
    eigenvalues = of(tmp_path, "largest eigenvalue")
    assert [(r["step"], r["epoch"], r["data"]) for r in eigenvalues] == [
        (step, step / 4, data) for step in (4, 8, 12) for data in ("train", "test")
    ]
    assert [r["step"] for r in of(tmp_path, "step noise")] == [6, 12]
    drifts = of(tmp_path, "drift")
    assert [r["step"] for r in drifts] == [7, 10, 12]
    assert [len(r["to_mean"]) for r in drifts] == [4, 4, 4]
    assert [r["between_rounds"] is None for r in drifts] == [True, False, False]
    assert watched(tmp_path) == EVERYTHING


def test_the_last_eigenvalue_is_that_of_the_averaged_model(tmp_path: Path) -> None:
    execution = finished(tmp_path, "lambda_max:3:40")
    data = batches_of(execution.assembly.task, 40)["test"]
    objective = Objective(averaged_model(execution.assembly), digits().loss, data)
    [record] = [r for r in of(tmp_path, "largest eigenvalue") if r["data"] == "test"]
    assert record["largest"] == pytest.approx(lanczos(Hessian(objective), 1).largest, rel=1e-5)


def test_drift_by_hand(tmp_path: Path) -> None:
    """Rounds of 3 on 12 steps: of the last one, from where all averaged at step 9 and at step
    12.
    """
    averaged = {}

    def keep(step: int) -> None:
        averaged[step] = execution.assembly.workers.params[0].clone()

    execution = prepared(
        tiny(method="local"), tmp_path, at_step=keep, watching=watch("drift", tmp_path)
    )
    execution.train()
    *_, before, last = of(tmp_path, "drift")
    update = averaged[9] - averaged[12]
    assert last["step"] == STEPS
    assert last["mean_update"] == pytest.approx(float(update.norm()), rel=1e-4)
    earlier = averaged[6] - averaged[9]
    cosine = float(update @ earlier / update.norm() / earlier.norm())
    assert last["between_rounds"] == pytest.approx(cosine, abs=1e-4)
    assert before["step"] == 9
    # mean ||update||^2 = ||mean update||^2 + mean ||distance to the mean||^2
    assert min(last["to_mean"]) > 0  # seen before they synchronise
    squares = [sum(d**2 for d in last[key]) / 4 for key in ("updates", "to_mean")]
    assert squares[0] == pytest.approx(last["mean_update"] ** 2 + squares[1], rel=1e-4)


def test_its_time_is_not_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(
        "localsgd.train.engine.execution.time", SimpleNamespace(perf_counter=lambda: clock.now)
    )
    watching = watch("drift", tmp_path)
    inner = watching.watchers[0].measure

    def slow(assembly: Assembly) -> list[dict[str, Any]]:
        clock.now += 100.0
        return inner(assembly)

    monkeypatch.setattr(watching.watchers[0], "measure", slow)
    execution = prepared(tiny(), tmp_path, watching=watching)
    execution.train()
    assert clock.now == 300.0
    assert execution.seconds == 0.0


def test_fewer_rounds_are_written_down_but_all_are_seen(tmp_path: Path) -> None:
    settings = {"method": "local", "local_steps": (2,)}
    finished(tmp_path / "all", "drift", **settings)
    finished(tmp_path / "some", "drift:2", **settings)
    assert of(tmp_path / "some", "drift") == of(tmp_path / "all", "drift")[1::2]


def test_a_resumed_run_counts_rounds_from_its_start(tmp_path: Path) -> None:
    settings = {"method": "local", "local_steps": (2,)}
    finished(tmp_path / "whole", "drift:2", **settings)
    path = tmp_path / "cut"
    stop = signalled_at(6, signal.SIGINT)
    with pytest.raises(Interrupted):
        prepared(tiny(**settings), path, at_step=stop, watching=watch("drift:2", path)).train()
    prepared(tiny(**settings), path, resuming=True, watching=watch(watched(path), path)).train()
    steps = [[r["step"] for r in of(tmp_path / name, "drift")] for name in ("whole", "cut")]
    assert steps[0] == steps[1] == [4, 8, 12]


def test_a_resumed_run_is_watched_on(tmp_path: Path) -> None:
    finished(tmp_path / "whole", EVERYTHING)
    path = tmp_path / "cut"
    stop = signalled_at(10, signal.SIGINT)
    with pytest.raises(Interrupted):
        prepared(tiny(), path, at_step=stop, watching=watch(EVERYTHING, path)).train()
    later = json.dumps(of(path, "drift")[-1] | {"step": 11})
    (path / FILE).write_text((path / FILE).read_text() + later + '\n{"ki')
    again = prepared(tiny(), path, resuming=True, watching=watch(watched(path), path))
    again.train()
    wanted = records(tmp_path / "whole")
    # What a round's updates are compared with is not saved.
    assert [without(r, "between_rounds") for r in records(path)] == [
        without(r, "between_rounds") for r in wanted
    ]


def without(record: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != key}


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("lambda", "unknown thing to watch 'lambda'; nearest: lambda_max"),
        ("lambda_max:0", "'0'; write lambda_max:EPOCHS:SAMPLES with numbers above 0"),
        ("drift,noise:x", "'x'; write noise:EPOCHS:SAMPLES"),
        ("drift:1:2", "too many numbers; write drift:ROUNDS"),
    ],
)
def test_mistakes(what: str, says: str) -> None:
    with pytest.raises(UserError) as refused:
        watch(what, Path())
    assert says in str(refused.value)


@pytest.mark.parametrize("settings", [{"delay": 1}, {"neighbours": "ring"}])
def test_drift_needs_a_model_on_which_all_average(tmp_path: Path, settings: dict[str, Any]) -> None:
    run = tiny(method="local", local_steps=(4,), **settings)
    with pytest.raises(UserError, match="they never hold the same model"):
        prepared(run, tmp_path, watching=watch("drift", tmp_path)).train()


def test_what_was_measured_before_a_run_went_on_is_there_once(tmp_path: Path) -> None:
    """However often the run was cut off and began there again."""
    watching = watch("drift", tmp_path)
    before = [{"kind": "drift", "step": step} for step in (2, 4)]
    watching.keep(before)
    watching.keep(before)
    lines = (tmp_path / "watched.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4]


def test_nothing_is_watched_where_nothing_is_asked_for() -> None:
    assert watch(" , ", Path()).watchers == []
    assert not watch("", Path()).due(None)  # type: ignore[arg-type]


def test_without_watchers_nothing_is_read_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor in the current folder, which `Watching()` has as its path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_text("5\n")
    watching = Watching()
    watching.start(None)  # type: ignore[arg-type]
    watching.keep([])
    assert watching.records() == []
    assert watching.measure(None) == []  # type: ignore[arg-type]
    assert (tmp_path / FILE).read_text() == "5\n"


@pytest.mark.parametrize("every", [1e-9, 1e-300, 0.1, 0.25])
def test_at_most_one_measurement_a_step(every: float) -> None:
    """A step is a quarter of an epoch."""
    run = tiny()
    assembly = SimpleNamespace(run=run, plan=Plan(run, 80))
    watcher = AtEpochs(every, lambda assembly: lambda model: [])
    watcher.start(assembly)  # type: ignore[arg-type]
    assert watcher._steps == {*range(1, STEPS + 1)}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[1]\n", "1 is damaged: give a mapping of names to values, not a list"),
        (b"5\n", "1 is damaged: give a mapping"),
        (b'{"a": 1}\n', "1 is damaged: it has no kind"),
        (b'{"kind": "watching", "step": 0}\n', "1 is damaged: it has no what"),
        (b'{"kind": "watching", "what": 5, "step": 0}\n', "what: give text, not a whole number"),
        (b'{"kind": "watching", "what": "drift", "step": "x"}\n', "step: give a whole number"),
        (b'{"kind": "surface", "step": 0}\n', "is damaged: "),
        (b'{"kind": "drift", "step": 7}\n', "1 is damaged: it has no to_mean"),
        (b"\xff\xfe", "is no text"),
        (b"[" * 200_000 + b"\n5\n", "1 is damaged: "),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(
    tmp_path: Path, content: bytes, says: str
) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(UserError) as refused:
        watched(tmp_path)
    said = str(refused.value)
    assert says in said
    assert said.startswith(str(tmp_path / FILE))
    assert len(said.splitlines()) == 1
    assert len(said) < 400


def test_a_last_line_cut_short_is_left_out(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"kind": "watching", "what": "drift", "step": 0}\n{"kind": "dr')
    assert watched(tmp_path) == "drift"


def test_samples_are_drawn_once_and_read_in_batches() -> None:
    task = digits()
    twice = [batches_of(task, 30, batch=20) for _ in range(2)]
    assert same(*twice)
    assert [len(y) for _, y in twice[0]["train"]] == [20, 10]
    everything = batches_of(task, batch=60)["test"]
    assert sum(len(y) for _, y in everything) == task.test_size
    x, _ = task.test_batch(torch.arange(task.test_size))
    assert torch.equal(torch.cat([x for x, _ in everything]), x)
    with pytest.raises(UserError, match="0 samples"):
        batches_of(task, 0)


def test_a_run_that_diverges_goes_on_and_says_that_nothing_was_measured(tmp_path: Path) -> None:
    execution = finished(tmp_path, "lambda_max:1:40,noise:1:40", lr=9e8, lr_warmup=0.0)
    assert execution.folder.summary() is not None
    last = [record for record in records(tmp_path) if record["step"] == STEPS]
    assert [record["kind"] for record in last] == ["not measured"] * 2
    assert all("curvature needs a finite loss" in record["why"] for record in last)


def test_a_round_that_the_end_cuts_short_has_the_steps_that_it_took(tmp_path: Path) -> None:
    finished(tmp_path, "drift", method="local", local_steps=(5,))
    drifts = of(tmp_path, "drift")
    assert [(one["step"], one["local_steps"]) for one in drifts] == [(5, 5), (10, 5), (12, 2)]


def test_noise_is_that_of_the_step_just_taken_where_the_batch_grows(tmp_path: Path) -> None:
    """5 samples a worker up to step 4, 15 after it."""
    finished(tmp_path, "noise:0.5:40", method="batch-growth")
    found = {one["step"]: one["local_batch"] for one in of(tmp_path, "step noise")}
    assert {step: 15 if step > 4 else 5 for step in found} == found
    assert found[4] == 5
    assert {*found.values()} == {5, 15}


def test_noise_of_batches_of_more_than_there_is_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="80 training samples, and a step takes 4 x 25 of them"):
        finished(tmp_path, "noise", method="batch-growth", local_steps=(5,))


def test_what_cannot_be_measured_costs_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as per-sample gradients of an LSTM in float64, which PyTorch lacks."""

    def fails(*_: Any, **__: Any) -> Any:
        return lambda model: torch.ones(2) + torch.ones(3)

    monkeypatch.setattr(watching, "step_noise", fails)
    with pytest.warns(UserWarning, match="not measured, and training goes on: The size of tensor"):
        execution = finished(tmp_path, "noise:3:40")
    assert execution.folder.summary() is not None
    (record,) = records(tmp_path)[1:]
    assert (record["kind"], record["step"]) == ("not measured", STEPS)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    with pytest.raises(UserError, match=r"can't be measured .*; go on with --processes 1"):
        watching._why_not(RuntimeError("first line\nsecond"))


@pytest.mark.parametrize(
    "error",
    [PeerLost("rank 1"), RuntimeError("[pair.cc:525] Connection closed by peer [127.0.0.1]:4242")],
)
def test_a_lost_process_is_no_fault_of_the_model(error: RuntimeError) -> None:
    with pytest.raises(type(error), match=re.escape(str(error))):
        watching._why_not(error)
