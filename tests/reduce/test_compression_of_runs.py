"""Runs whose outermost level sends less: they learn, resume and split to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from localsgd.averaging.placement import placement_of
from localsgd.errors import UserError
from localsgd.train.config.complete import complete_run
from localsgd.train.config.plan import Plan
from localsgd.train.config.run import Run
from localsgd.train.data.tasks.digits import CARD
from localsgd.train.engine import checkpoints
from localsgd.train.engine.assembly import Assembly, assemble
from localsgd.train.engine.evaluation import averaged_model, score
from localsgd.train.engine.execution import barrier
from tests.distributed import harness
from tests.runs import digits, same, tiny, worker_states

pytestmark = pytest.mark.timeout(300)

CASES: dict[str, dict[str, Any]] = {
    "sign": {"compression": "sign"},
    "gathered": {"compression": "ef-sign", "compression_way": "gather"},
    "two-phase": {"compression": "ef-sign", "compression_way": "two-phase"},
    "blocks": {
        "compression": "ef-sign",
        "compression_way": "two-phase",
        "topology": "2x2",
        "method": "hierarchical",
        "local_steps": (2, 2),
    },
    "unequal": {
        "compression": "ef-sign",
        "compression_way": "two-phase",
        "topology": "1+3",
        "method": "hierarchical",
        "local_steps": (2, 2),
    },
    "majority": {"compression": "majority"},
    "int8": {"compression": "int8"},
    "top-k": {"compression": "top-k", "top_k_fraction": 0.1},
    "bfloat16": {"compression": "bfloat16", "compression_way": "two-phase"},
    "power-sgd": {"compression": "power-sgd"},
}
WITH_MEMORY = [case for case in CASES if case not in ("sign", "majority")]


def assembled(case: str) -> Assembly:
    run = tiny(**CASES[case])
    return assemble(run, digits(), placement_of(Plan(run, 80).topology), torch.device("cpu"))


def all_of(assembly: Assembly) -> dict[str, Any]:
    return {
        "workers": worker_states(assembly),
        "bytes": [(entry.calls, entry.bytes) for entry in assembly.ledger.levels],
    }


def saved_at(case: str, steps: tuple[int, ...], folder: str) -> dict[str, Any]:
    """The end of a run that leaves a checkpoint after each of `steps`."""
    assembly = assembled(case)

    def save() -> None:
        if assembly.workers.step in steps:
            at = Path(folder) / f"at-{assembly.workers.step}"
            checkpoints.save(assembly, at, barrier, {})

    assembly.advance(save)
    return all_of(assembly)


def resumed(case: str, step: int, folder: str) -> dict[str, Any]:
    assembly = assembled(case)
    [checkpoint] = checkpoints.checkpoints(Path(folder) / f"at-{step}")
    checkpoints.load(assembly, checkpoint)
    assembly.advance()
    return all_of(assembly)


@pytest.mark.parametrize("case", CASES)
def test_resumes_to_the_same_bits(case: str, tmp_path: Path) -> None:
    """Before the first sync, right after one, and in the middle of a round."""
    steps = (1, 4, 8)
    end = saved_at(case, steps, str(tmp_path))
    for step in steps:
        assert same(end, resumed(case, step, str(tmp_path))), f"from {step}"


@pytest.mark.parametrize("case", ["two-phase", "blocks", "unequal"])
def test_other_splits_of_the_workers_go_on_with_the_same_bits(case: str, tmp_path: Path) -> None:
    end = saved_at(case, (5,), str(tmp_path / "here"))
    there = harness.run(4, saved_at, case, (5,), str(tmp_path / "there"), seconds=240)
    for part in there:
        for worker, found in part["workers"].items():
            assert same(end["workers"][worker], found), f"worker {worker} of 4 processes"
    assert same(resumed(case, 5, str(tmp_path / "there")), end), "from 4 processes to 1"
    for part in harness.run(4, resumed, case, 5, str(tmp_path / "here"), seconds=240):
        for worker, found in part["workers"].items():
            assert same(end["workers"][worker], found), f"worker {worker} from 1 process to 4"


@pytest.mark.parametrize("case", WITH_MEMORY)
def test_the_memory_matters(case: str, tmp_path: Path) -> None:
    """The tests above would be vacuous otherwise."""
    end = saved_at(case, (8,), str(tmp_path))
    assembly = assembled(case)
    [checkpoint] = checkpoints.checkpoints(tmp_path / "at-8")
    checkpoints.load(assembly, checkpoint)
    memory = assembly.levels[-1].state()["reducer"]  # type: ignore[union-attr]
    assert memory["error"].any()
    memory["error"].zero_()
    assembly.advance()
    assert not same(all_of(assembly)["workers"], end["workers"])


@pytest.mark.parametrize("case", ["sign", "gathered", "two-phase", "top-k", "power-sgd"])
def test_learns_the_digits(case: str) -> None:
    """A run of a few seconds: 8 workers, H = 1 and then 4."""
    run = complete_run(
        Run(
            model="mlp-16",
            workers=8,
            batch=8,
            epochs=12.0,
            local_steps=(4,),
            reduction="ordered",
            **CASES[case],
        ),
        CARD,
    )
    task = digits(1000)
    assembly = assemble(run, task, placement_of(Plan(run, 1000).topology), torch.device("cpu"))
    assembly.advance()
    assert score(averaged_model(assembly), assembly).accuracy > 0.8


def test_gradients_cannot_be_compressed() -> None:
    with pytest.raises(
        UserError, match="compression ef-sign compresses updates of models, but averag"
    ):
        tiny(compression="ef-sign", average="gradients")
