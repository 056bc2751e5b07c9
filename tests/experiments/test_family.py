"""The stability of two momenta beside runs of the levels themselves; what the report pairs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from experiments.family.design import ARMS, TABLE_OF_MOMENTA, settings
from experiments.family.report import Line, lines, markdown
from experiments.family.runner import Kept
from experiments.family.stability import largest_stable
from localsgd import outer
from localsgd.averaging.level import Level
from localsgd.errors import UserError
from localsgd.train.config.complete import complete_run
from localsgd.train.config.run import Run
from localsgd.train.data.tasks.fashion_mnist import CARD
from localsgd.wire import InProcess


def after(h: float, momentum: float, steps: int = 4000) -> float:
    """|w| after so many steps of two workers on w²/2 with a local Nesterov momentum of 0.9."""
    rows = torch.ones(2, 1, dtype=torch.float64)
    level = Level(rows.unsqueeze(0), InProcess(2), outer=outer.block_momentum(momentum))
    level.begin_round(h)
    workers = [torch.nn.Parameter(row, requires_grad=False) for row in rows]
    optimizers = [torch.optim.SGD([w], lr=h, momentum=0.9, nesterov=True) for w in workers]
    for _ in range(steps):
        for worker, optimizer in zip(workers, optimizers, strict=True):
            worker.grad = worker.clone()
            optimizer.step()
        level.average()
        level.share()
        if not rows.abs().max() < 1e6:
            return math.inf
    return float(rows.abs().max())


@pytest.mark.parametrize("momentum", [0.3, 0.5, 0.7])
def test_the_largest_stable_step_is_where_levels_begin_to_diverge(momentum: float) -> None:
    limit = largest_stable(0.9, momentum)
    assert after(0.9 * limit, momentum) < 1.0
    assert after(1.1 * limit, momentum) > 100.0


def test_the_collapse_lies_between_half_and_seven_tenths() -> None:
    limits = {m: largest_stable(0.9, m) for m in (0.0, 0.3, 0.5, 0.6, 0.7, 0.9)}
    assert limits[0.0] < limits[0.3] < limits[0.5]
    assert limits[0.5] > 10 * limits[0.6] > 30 * limits[0.7] > 300 * limits[0.9]


def test_every_arm_is_a_run() -> None:
    for arm in ARMS | TABLE_OF_MOMENTA:
        run = complete_run(Run(**settings(arm, 0)), CARD)
        assert run.workers == 16


def test_the_report_pairs_seeds() -> None:
    def row(arm: str, seed: int, accuracy: float) -> dict:
        return {
            "arm": arm,
            "settings": {"seed": seed},
            "test_accuracy": accuracy,
            "syncs": [10],
            "bytes": [2_000_000, 500_000],
        }

    rows = [row("mini-batch SGD", s, a) for s, a in enumerate((0.80, 0.82, 0.81))]
    rows += [row("local SGD", s, a) for s, a in enumerate((0.79, 0.80, 0.80))]
    found = {line.arm: line for line in lines(rows, ARMS)}
    line: Line = found["local SGD"]
    assert line.against == pytest.approx((-1.0, -2.0, -1.0))
    # Deviation of (-1, -2, -1) is 0.577; t for two degrees of freedom 4.303.
    assert line.half_width == pytest.approx(4.303 * 0.57735 / 3**0.5, rel=1e-4)
    text = markdown(list(found.values()))
    assert "| local SGD | 79.67 ± 0.58 | -1.33 ± 1.43 | 10 | 2.50 MB |" in text


ROW = {"arm": "a", "settings": {"seed": 1}, "test_accuracy": 0.5, "syncs": [2], "bytes": [8]}


def test_kept_runs_are_found_and_lines_cut_short_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text("[" * 100_000 + "\n" + '{"arm": "b"')
    Kept(path).add(ROW)
    assert Kept(path).rows == [ROW]
    assert Kept(path).find({"seed": 1}) == ROW


@pytest.mark.parametrize(
    "line", ["5", "[]", "{}", *(json.dumps({**ROW, name: "x"}) for name in ROW if name != "arm")]
)
def test_a_line_that_is_no_run_is_refused_by_its_file(tmp_path: Path, line: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n{line}\n")
    with pytest.raises(UserError, match=r"runs.jsonl:2 is damaged: .*; take the line out"):
        Kept(path)
