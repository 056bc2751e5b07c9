"""`plan` with numbers that are given, and with a step that is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from localsgd import UserError
from localsgd.cli.options import PlanCommand
from localsgd.cli.planning import EVIDENCE, evidence, plan
from localsgd.cost.allreduce import Link
from localsgd.cost.planner import Plan, Stage

GIVEN = {"step_seconds": 0.1, "scalars": 1e6, "rates": (100e6,)}


def test_the_h_of_the_plan_and_the_command_for_it_are_said(capsys, tmp_path: Path) -> None:
    figure = tmp_path / "plan.png"
    assert plan(PlanCommand(topology="4", figure=figure, **GIVEN)) == 0
    said = " ".join(capsys.readouterr().out.split())
    made = Plan(0.1, 1_000_000, (Stage(4, Link.of_rate(100e6)),))
    for way in ("dense", "int8", "sign"):
        assert f"{way}: H = {made.smallest(way=way)} is the smallest" in said
    assert f"--method post-local --topology 4 --local-steps {made.smallest()}" in said
    assert figure.stat().st_size > 1000


def test_levels_within_keep_their_h(capsys) -> None:
    command = PlanCommand(
        topology="100x8", inner=(2,), waiting=0.2, **{**GIVEN, "rates": (10e9, 100e6)}
    )
    assert plan(command) == 0
    said = " ".join(capsys.readouterr().out.split())
    stages = Stage(8, Link.of_rate(10e9)), Stage(100, Link.of_rate(100e6))
    steps = Plan(0.1, 1_000_000, stages).smallest(0.2, inner=[2])
    assert f"--method hierarchical-post-local --topology 100x8 --local-steps 2 {steps}" in said


def test_a_step_is_measured_where_it_is_not_given(capsys) -> None:
    assert plan(PlanCommand(topology="1", task="digits", batch=8)) == 0
    assert "1 worker, " in capsys.readouterr().out


def test_evidence_is_of_the_next_larger_h_that_the_paper_has() -> None:
    assert evidence(1) == EVIDENCE[0][1]
    assert evidence(16) == evidence(32) != evidence(64)
    assert evidence(65) == evidence(10**6) == EVIDENCE[-1][1]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"topology": "2+3"}, "blocks of one size"),
        ({"topology": "4x2"}, "--rates has 1 number for 2 levels"),
        ({"latencies": (1.0, 2.0)}, "--latencies needs --rates"),
        ({"inner": (2,)}, "--inner has 1 number"),
        ({"batch": 0}, "--batch 0"),
        ({"scalars": float("inf")}, "--scalars inf is out of range"),
        ({"scalars": 0.4}, "--scalars 0.4 is out of range"),
        ({"waiting": 1.0}, "--waiting 1 is no fraction of the time"),
        ({"figure": Path("plan.doc")}, "--figure plan.doc is no picture's name"),
        ({"rates": ()}, "1 process can't measure the links of 4"),
    ],
)
def test_mistakes_are_named(changed: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan(PlanCommand(**{"topology": "4", **GIVEN, **changed}))
