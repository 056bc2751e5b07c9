"""Schedules that judge by the norm of the gradient, which the trainer reports."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from localsgd.averaging import overlap
from localsgd.averaging.placement import placement_of
from localsgd.errors import UserError
from localsgd.schedule import Observing, Progress
from localsgd.show.sending import sent
from localsgd.train.config.plan import Plan
from localsgd.train.engine.assembly import Assembly, assemble
from localsgd.train.engine.execution import Interrupted
from localsgd.train.plugins import add
from tests.distributed import harness
from tests.runs import SAMPLES, digits, prepared, same, signalled_at, tiny, worker_states

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("own_names")]

NORMS: list[float | None] = []
"""What the schedule has seen, in the order of its calls."""


@dataclass(frozen=True)
class ByNorm(Observing):
    """H = `local_steps` once the gradient is shorter than `norm`, and 1 before."""

    local_steps: int = 3
    norm: float = 0.0
    sees = ("reported:gradient_norm",)

    def __call__(self, progress: Progress) -> int:
        norm = progress.reported.get("gradient_norm")
        NORMS.append(norm)
        return self.local_steps if norm is not None and norm < self.norm else 1


@dataclass(frozen=True)
class Grows(ByNorm):
    norm: float = 2.0


class Elsewhere(ByNorm):
    sees = ("reported:gradient_norm", "reported:temperature")


def assembled(schedule: type[ByNorm] = ByNorm, **settings: Any) -> Assembly:
    """In float64, with no norm short enough: H stays at 1."""
    add("schedules", "by-norm", schedule)
    run = tiny(precision="float64", model="mlp-16", method="by-norm", **settings)
    place = placement_of(Plan(run, SAMPLES).topology)
    NORMS.clear()
    return assemble(run, digits(), place, torch.device("cpu"))


def by_hand(assembly: Assembly) -> list[float]:
    """The mean over workers of their gradients' norms at each step of mini-batch SGD."""
    model, found = copy.deepcopy(assembly.workers.models[0]), []
    sgd = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=True)
    for step in range(assembly.plan.steps):
        gradients = []
        for worker in range(4):
            x, y = assembly.task.train_batch(assembly.order.indices(worker, step), None)
            loss = assembly.task.loss(model(x.double()), y)
            gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        found.append(sum(float(nn.utils.get_total_norm(own)) for own in gradients) / 4)
        for p, own in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
            p.grad = torch.stack(own).mean(0)
        sgd.param_groups[0]["lr"] = assembly.plan.learning_rate(step)
        sgd.step()
    return found


@pytest.mark.parametrize("settings", [{}, {"batched": True}, {"average": "models"}], ids=str)
def test_a_schedule_sees_the_mean_norm_of_the_workers_own_gradients(settings: dict) -> None:
    assembly = assembled(weight_decay=0.0, **settings)
    expected = by_hand(assembly)
    assembly.advance()
    assert NORMS[:2] == [None, None]  # A mean is used two rounds later.
    seen = torch.tensor(NORMS[2:], dtype=torch.float64)
    wanted = torch.tensor(expected[: len(seen)], dtype=torch.float64)
    assert len(seen) == assembly.plan.steps - 2
    torch.testing.assert_close(seen, wanted, rtol=1e-12, atol=0)


def test_the_norm_is_the_one_before_clipping() -> None:
    assembly = assembled(weight_decay=0.0, clip=0.01)
    expected = by_hand(assembly)[0]
    assembly.advance()
    assert expected > 0.01
    assert NORMS[2] == pytest.approx(expected, rel=1e-12)


def test_what_is_foreseen_is_what_is_counted() -> None:
    assembly = assembled()
    foreseen = [level.whole for level in sent(assembly.plan, assembly.workers.layout)]
    assembly.advance()
    assert foreseen == [entry.bytes for entry in assembly.ledger.levels]


def test_other_numbers_are_refused() -> None:
    with pytest.raises(UserError, match=r"looks at temperature, .*reported:gradient_norm"):
        assembled(Elsewhere)


def trained(folder: str, cut: int | None = None) -> tuple[dict[int, Any], list[Any]]:
    """States of the workers; syncs and bytes, which tell of the H that were chosen.

    Gradients are not averaged during the backward pass, which would change them in place.
    """
    add("schedules", "by-norm", Grows)
    run, path = tiny(method="by-norm", epochs=6.0), Path(folder)
    if cut is not None:
        with pytest.raises(Interrupted):
            prepared(run, path, at_step=signalled_at(cut, 15)).train()
    with mock.patch.object(overlap, "SLICE", 64):
        execution = prepared(run, path, resuming=cut is not None)
    assembly = execution.assembly
    assert not any(isinstance(level, overlap.Overlapped) for level in assembly.gradients)
    execution.train()
    [entry] = assembly.ledger.levels
    assert assembly.plan.steps == 24
    return worker_states(assembly), [assembly.syncs, entry.bytes]


@pytest.mark.parametrize("cut", [5, 12, 17])
def test_cut_off_and_resumed_to_the_same_bits(cut: int, tmp_path: Path) -> None:
    whole = trained(str(tmp_path / "whole"))
    assert same(trained(str(tmp_path / "cut"), cut), whole)


def test_the_same_bits_however_workers_are_hosted(tmp_path: Path) -> None:
    states, sent_here = trained(str(tmp_path / "here"))
    assert 8 < sent_here[0][0] < 24  # H = 1 at first, later 3
    parts = harness.run(2, trained, str(tmp_path / "there"), seconds=240)
    there = {worker: state for part in parts for worker, state in part[0].items()}
    assert same(there, states)
    assert all(part[1] == sent_here for part in parts)
