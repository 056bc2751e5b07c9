"""Whole runs of a small LSTM on a made-up text: what a stream carries is a worker's own."""

from __future__ import annotations

import functools
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from localsgd.errors import UserError
from localsgd.show import pictures, tables
from localsgd.train.config.complete import complete_run
from localsgd.train.config.run import Run
from localsgd.train.data.tasks import wikitext
from localsgd.train.data.tasks.text import TextTask
from localsgd.train.engine.evaluation import averaged_model
from localsgd.train.engine.execution import Execution, prepare
from localsgd.train.engine.run_folder import Folder
from tests.distributed import harness
from tests.runs import Killed, Silent, killed_at, same, worker_states

pytestmark = pytest.mark.timeout(300)

WORDS = 11


@functools.cache
def text() -> TextTask:
    """60 segments, in which a word mostly follows from the one before it; 20 to test."""
    numbers = [1]
    for index in range(2500):
        numbers.append((numbers[-1] * 2 + index % 7 // 6) % WORDS)
    card = replace(wikitext.CARD, classes=WORDS, train_size=60, test_size=20)
    train, test = torch.tensor(numbers).split([1801, 700])
    return TextTask(card=card, train=train, test=test[:601])


def run_of(**settings: Any) -> Run:
    """2 workers of 3 streams: 10 steps an epoch."""
    usual = {
        "task": "wikitext-2",
        "model": "lstm-2x8-tied",
        "workers": 2,
        "batch": 3,
        "lr": 1.0,
        "lr_batch": 6,
        "epochs": 1.0,
        "local_steps": (3,),
        "method": "local",
        "reduction": "ordered",
        "evaluate_every": 0.4,
    }
    return complete_run(Run(**{**usual, **settings}), text().card)


def prepared(path: Path, *, resuming: bool = False, stop: int = -1, **settings: Any) -> Execution:
    observer = Silent(killed_at(stop))
    return prepare(run_of(**settings), text(), path, observer, resuming=resuming)


def carried(execution: Execution) -> list[torch.Tensor]:
    return [model.get_buffer("outputs") for model in execution.assembly.workers.models]


def test_every_worker_reads_on_with_its_own_state(tmp_path: Path) -> None:
    execution = prepared(tmp_path)
    execution.train()
    one, other = carried(execution)
    assert one.shape == (2, 3, 8)
    assert one.abs().min() > 0
    assert not torch.equal(one, other)  # the last step ended in a sync on the weights
    params = execution.assembly.workers.params
    assert torch.equal(params[0], params[1])


def test_it_learns_and_perplexity_is_exp_of_the_loss(tmp_path: Path) -> None:
    settings = {"optimizer": "adam", "lr": 0.03, "epochs": 12.0, "evaluate_every": 4.0}
    execution = prepared(tmp_path, evaluate_local="always", **settings)
    summary = execution.train()
    rows = execution.folder.metrics()
    for row in (*rows, summary):
        assert row["test_perplexity"] == math.exp(row["test_loss"])
        assert "test_accuracy" not in row
    assert summary["best_perplexity"] == min(row["test_perplexity"] for row in rows)
    assert summary["local_perplexity"] == pytest.approx(summary["test_perplexity"], rel=1e-6)
    assert summary["test_perplexity"] < 0.5 * WORDS


def test_the_averaged_model_carries_nothing_and_leaves_what_is_carried(tmp_path: Path) -> None:
    execution = prepared(tmp_path)
    workers = execution.assembly.workers
    workers.backward()
    workers.apply(0.1)
    before = worker_states(execution.assembly)
    model = averaged_model(execution.assembly)
    execution._evaluate()
    assert same(worker_states(execution.assembly), before)
    assert not {"outputs", "cells"} & model.state_dict().keys()


@pytest.mark.parametrize("step", [1, 4, 5, 9])
def test_cut_off_and_resumed_to_the_same_bits(step: int, tmp_path: Path) -> None:
    whole = prepared(tmp_path / "whole")
    whole.train()
    with pytest.raises(Killed):
        prepared(tmp_path / "cut", stop=step).train()
    again = prepared(tmp_path / "cut", resuming=True)
    again.train()
    assert same(worker_states(again.assembly), worker_states(whole.assembly))
    assert Folder(tmp_path / "cut").model.read_bytes() == whole.folder.model.read_bytes()


def hosted(path: str) -> tuple[dict[int, Any], list[float]]:
    execution = prepared(Path(path))
    execution.train()
    rows = Folder(Path(path)).metrics()
    return worker_states(execution.assembly), [row["test_loss"] for row in rows]


def test_two_processes_end_with_the_bits_of_one(tmp_path: Path) -> None:
    states, losses = hosted(str(tmp_path / "one"))
    parts = harness.run(2, hosted, str(tmp_path / "two"), seconds=240)
    found = {worker: state for part, _ in parts for worker, state in part.items()}
    assert same(found, states)
    assert parts[0][1] == pytest.approx(losses, rel=1e-6)


def test_bfloat16_is_autocast_but_for_the_layers(tmp_path: Path) -> None:
    mixed, plain = prepared(tmp_path / "a", precision="bfloat16"), prepared(tmp_path / "b")
    found, expected = mixed.train(), plain.train()
    assert mixed.assembly.workers.params.dtype == torch.float32
    assert not torch.equal(mixed.assembly.workers.params, plain.assembly.workers.params)
    assert found["test_loss"] == pytest.approx(expected["test_loss"], abs=0.05)


def test_without_streams_carried_the_run_is_another(tmp_path: Path) -> None:
    """So the tests above see that something is carried."""
    usual, forgetful = prepared(tmp_path / "a"), prepared(tmp_path / "b")
    for model in forgetful.assembly.workers.models:
        model.register_forward_pre_hook(lambda module, _: (module.outputs.zero_(), None)[1])
    usual.train()
    forgetful.train()
    assert not torch.equal(usual.assembly.workers.params, forgetful.assembly.workers.params)


def test_shown_by_perplexity_and_not_beside_accuracies(tmp_path: Path) -> None:
    from rich.console import Console

    from tests.show.records import folder_of

    folders = []
    for seed in (0, 1):
        execution = prepared(tmp_path / str(seed), seed=seed)
        execution.train()
        folders.append(execution.folder)
    last = folders[0].metrics()[-1]["test_perplexity"]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(tables.run(folders[0]))
    console.print(tables.comparison(folders))
    said = console.export_text()
    assert f"test perplexity {last:.2f}; best " in said
    assert "Perplexities (lower is better) of the averaged model" in said
    assert "test perplexity against bytes" in pictures.text(folders)
    pictures.run(folders[0], tmp_path / "run.png")
    pictures.comparison(folders, tmp_path / "both.png")
    other = folder_of(tmp_path / "digits", [0.5, 0.9])
    with pytest.raises(UserError, match="by perplexity and by accuracy can't be compared"):
        tables.comparison([folders[0], other])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"channels_last": True}, "channels_last is for images"),
        ({"model": "small-cnn"}, "reads images, but the task wikitext-2 gives text"),
        ({"batch": 31}, "60 .*: too few for 2 workers"),
    ],
)
def test_mistakes_are_one_line(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        prepared(tmp_path / "run", **settings)
