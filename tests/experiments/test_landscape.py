"""The flatness study: arms that fork are whole runs, claims are judged by hand, seeds are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch

from experiments.claims import OPEN
from experiments.landscape import arms, claims, figures, report, rounds, study
from experiments.landscape.claims import Claim, judged, rises
from experiments.landscape.design import ARMS, SETTINGS
from localsgd.errors import UserError
from localsgd.train.data import tasks

matplotlib.use("Agg")

TINY = replace(
    SETTINGS["digits"],
    model="small-cnn-4",
    train_samples=200,
    batch=4,
    epochs=3,
    every=1,
    samples=40,
    seeds=2,
)
"""18 steps of 8 workers; phase 2 from step 9."""


def test_a_fork_is_the_whole_run() -> None:
    task, card = study.load(TINY, None), tasks.card("digits")
    fork, _ = arms.phase_one(TINY.completed("H=1", 0, card), task)
    assert fork.step == 9
    for arm in ("H=1", "H=4"):
        run = TINY.completed(arm, 0, card)
        whole = arms.assembled(run, task)
        whole.advance()
        forked = arms.resumed(run, task, fork)
        arms.trained(forked)
        assert torch.equal(whole.workers.params, forked.workers.params)
        assert (whole.workers.step, forked.workers.step) == (18, 18)


def test_what_chance_does_in_a_round() -> None:
    assert rounds.spread(torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]])) == 4.0 + 3.0
    task, card = study.load(TINY, None), tasks.card("digits")
    run = TINY.completed("H=1", 0, card)
    fork, _ = arms.phase_one(run, task)
    runs = {arm: TINY.completed(arm, 0, card) for arm in ("H=1", "H=4")}
    found = rounds.spreads(runs, task, fork, steps=4, repeats=3)
    # With one step a round all workers have the model on which they synchronise.
    assert found["H=1"]["worker"] == found["H=1"]["averaged"] > 0
    assert found["H=4"]["worker"] > 2 * found["H=4"]["averaged"]


def test_claims_follow_the_one_rule_once_all_seeds_are_there() -> None:
    def found(sign: Any, planned: int, *values: float) -> list[str]:
        seeds = [[{"value": value}] for value in values]
        claim = Claim("", "", lambda records: records[0]["value"], sign)
        open_ = Claim("", "", lambda records: -(records[0]["value"] ** 9), 1)
        apart = Claim("", "", lambda records: records[0]["value"], sign, family="accuracy")
        return [one.state for one in judged([claim, open_, apart], seeds, planned)]

    below = (-1.0, -1.1, -0.9, -1.05, -0.95)
    assert found(-1, 5, *below) == ["reproduced", "reproduced", "reproduced"]
    assert found(1, 5, *below)[0] == "not reproduced"
    assert found(-1, 6, *below) == found(-1, 3, *below[:3]) == [OPEN] * 3
    # p of 0.045, which decides alone and not beside another of its family.
    near = (-0.05, -0.5, -0.1, -0.6, -0.3)
    assert found(-1, 5, *near) == [OPEN, OPEN, "reproduced"]


def test_rises_are_over_near_steps() -> None:
    steps = [-1.0, -0.5, 0.0, 0.5, 1.0]
    curve = {"kind": "curve", "model": "H=1", "data": "test", "steps": steps}
    both = [
        {**curve, "direction": 1, "loss": [9.0, 3.0, 1.0, 2.0, 9.0]},
        {**curve, "direction": 0, "loss": [9.0, 2.0, 1.0, 2.0, 9.0]},
    ]
    assert rises(both, "H=1", "test").tolist() == [1.0, 1.5]


def test_reading_changes_nothing_and_going_on_drops_what_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "digits.jsonl"
    whole = '{"seed":0,"kind":"result"}\n{"seed":0,"kind":"effort"}\n'
    cut = whole + '{"seed":1,"kind":"result"}\n{"seed":1,"ki'
    path.write_text(cut)
    assert [record["kind"] for record in study.read(path)] == ["result", "effort"]
    assert path.read_text() == cut
    monkeypatch.setattr(study, "one_seed", lambda *_: [{"kind": "effort"}])
    task: Any = None
    study.study(TINY, task, path, lambda _: None)
    assert path.read_text() == whole + '{"seed":1,"kind":"effort"}\n'
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "line", ["5", "[]", '{"kind": "effort"}', '{"seed": "a", "kind": "effort"}', "[" * 100_000, "{"]
)
def test_a_line_that_is_no_record_is_refused_and_nothing_dropped(tmp_path: Path, line: str) -> None:
    path = tmp_path / "digits.jsonl"
    path.write_text(f'{line}\n{{"seed":0,"kind":"effort"}}\n')
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"digits.jsonl:1 is damaged: .*"):
        study.study(TINY, None, path, lambda _: None)  # type: ignore[arg-type]
    assert path.read_bytes() == before


def test_a_study_of_two_seeds_its_figures_and_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = replace(TINY, model="mlp-4")
    for module, name, value in (
        (study, "REPEATS", 2),
        (study.measures, "DIRECTIONS", 2),
        (study.measures, "LINE_POINTS", 5),
        (study.measures, "PLANE_POINTS", 3),
        (report, "SETTINGS", {"digits": quick}),
    ):
        monkeypatch.setattr(module, name, value)
    task, path = study.load(quick, None), tmp_path / "digits.jsonl"
    study.study(quick, task, path, lambda _: None, 1)
    one = path.read_text()
    path.write_text(one + '{"seed": 1, "kind": "eigenv')
    said: list[str] = []
    records = study.study(quick, task, path, said.append)
    assert path.read_text().startswith(one)
    assert not any("seed 0" in line for line in said)
    assert study.read(path) == records
    for arm in ARMS:
        for data in ("train", "test"):
            assert len(claims.chosen(records, "result", model=arm, data=data)) == 2
    folder = tmp_path / "figures"
    folder.mkdir()
    drawn = figures.draw_all("digits", records, folder)
    assert len(drawn) == len(figures.FIGURES)
    page = report.page({"digits": records})
    for text in ("| H=16 |", "95 % interval", "2 seeds of 2", "Barrier of the test loss"):
        assert text in page
    assert len([line for line in page.splitlines() if line.startswith("| ")]) > len(
        claims.all_claims()
    )
