"""Tables of runs: the right figures, nothing lost where there is little room."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from localsgd.show import tables
from localsgd.train.engine.run_folder import Folder
from tests.show.records import folder_of, plan_of


def printed(what: RenderableType, width: int = 120) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(what)
    return file.getvalue()


def rest_of(text: str, first: str) -> str:
    """What follows `first` in the line that begins with it, with single spaces."""
    (line,) = [line for line in text.splitlines() if line.startswith(first + " ")]
    return " ".join(line.removeprefix(first).split())


@pytest.mark.parametrize("width", [80, 120])
def test_comparison_has_a_row_for_each_configuration(tmp_path: Path, width: int) -> None:
    folders = [
        folder_of(tmp_path / "a", [0.8, 0.6], seed=0),
        folder_of(tmp_path / "b", [0.9, 0.7], seed=1),
        folder_of(tmp_path / "c", [0.5, 0.9], method="local", local_steps=(4,)),
    ]
    text = printed(tables.comparison(folders), width)
    seeds, single = rest_of(text, "post-local"), rest_of(text, "local")
    # 44 steps; post-local switches at step 22, and the last two of its rounds of 8 end with step 44
    assert seeds == "1→8 65.00 85.00 64.00 1.000 25 25.0 kB 3.0 s 500 ms"
    assert single == "4 90.00 90.00 89.00 1.000 11 11.0 kB 3.0 s 500 ms"
    assert rest_of(text, "2 runs") == "±7.07 ±7.07 ±7.07 ±0.000"
    assert "seeds" in text


def test_levels_stand_one_below_the_other(tmp_path: Path) -> None:
    hierarchical = folder_of(
        tmp_path / "a", [0.9], method="hierarchical", topology="4x2", local_steps=(2, 2)
    )
    text = printed(tables.comparison([hierarchical, folder_of(tmp_path / "b", [0.9])]))
    first = rest_of(text, "hierarchical")
    assert first.startswith("2, 2 90.00")
    assert "22 22.0 kB" in first
    assert "11 11.0 kB" in rest_of(text, "on 4x2")


def test_comparison_says_which_runs_have_not_ended(tmp_path: Path) -> None:
    text = printed(tables.comparison([folder_of(tmp_path / "a", [0.5, 0.9], ended=False)]))
    assert "(at epoch 2.0 of 4)" in text


def test_comparison_of_a_run_without_evaluations(tmp_path: Path) -> None:
    text = printed(tables.comparison([folder_of(tmp_path / "a", [0.5], ended=False)]))
    assert "(at epoch 0.0 of 4)" in text
    assert "–" in text


def test_no_figure_is_cut_at_80_columns(tmp_path: Path) -> None:
    settings = {"method": "hierarchical-post-local", "topology": "4x2", "local_steps": (16, 128)}
    folders = [
        *(folder_of(tmp_path / f"{seed}", [0.98], seed=seed, **settings) for seed in range(2)),
        folder_of(tmp_path / "b", [0.9]),
    ]
    text = printed(tables.comparison(folders), 80)
    assert "…" not in text
    assert "98.00" in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("width", [80, 120])
def test_run_tells_what_came_out_and_what_it_cost(tmp_path: Path, width: int) -> None:
    settings = {"method": "hierarchical", "topology": "4x2", "local_steps": (2, 2)}
    text = printed(tables.run(folder_of(tmp_path / "a", [0.5, 0.9], **settings)), width)
    assert "test accuracy 90.00 %" in text
    assert "hierarchical, H = 2, 2" in text
    assert "first-decay" not in text
    assert "abacus" in text
    assert rest_of(text, "within blocks") == "2 22 22 22.0 kB 500 ms 22.0 kB"
    assert rest_of(text, "between blocks") == "4 11 11 11.0 kB 500 ms 16.5 kB"
    assert "(measured)" in text
    assert "(modelled)" in text


def test_run_tells_what_was_no_training(tmp_path: Path) -> None:
    text = " ".join(printed(tables.run(folder_of(tmp_path / "a", [0.5, 0.9]))).split())
    assert "a second); evaluating 1.2 s; saving 500 ms" in text


def test_run_that_has_diverged(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", [0.5, 0.1])
    assert "diverged" not in printed(tables.run(folder))
    summary = folder.path / "summary.json"
    told = json.loads(summary.read_text()) | {"test_loss": float("nan")}
    summary.write_text(json.dumps(told))
    assert "no finite numbers any more" in printed(tables.run(folder))


def test_run_that_has_not_ended(tmp_path: Path) -> None:
    text = printed(tables.run(folder_of(tmp_path / "a", [0.5, 0.9], ended=False)))
    assert "not ended: evaluated up to step 22, epoch 2.0 of 4" in text
    assert "none yet" in text
    (tmp_path / "a" / "checkpoints" / "step-00000022").mkdir(parents=True)
    (tmp_path / "a" / "checkpoints" / "step-00000022" / "common.json").write_text('{"step": 22}')
    text = " ".join(printed(tables.run(Folder(tmp_path / "a"))).split())
    assert f"of step 22; go on with: localsgd resume {tmp_path / 'a'}" in text


def test_many_evaluations_are_thinned(tmp_path: Path) -> None:
    text = printed(tables.run(folder_of(tmp_path / "a", [0.01 * n for n in range(1, 41)])))
    assert "(12 of 40)" in text
    assert " 1.00 %" in text
    assert " 40.00 %" in text


def test_what_arrived_is_what_the_ledger_says_and_in_old_records_a_rings() -> None:
    assert tables.arrived_bytes({"bytes": 1000, "arrived": 3000}, 4) == 3000
    assert tables.arrived_bytes({"bytes": 1000}, 1) == 0
    assert tables.arrived_bytes({"bytes": 1000}, 2) == 1000
    assert tables.arrived_bytes({"bytes": 1000}, 4) == 1500


@pytest.mark.parametrize(
    ("settings", "rising", "optimizer"),
    [
        ({}, "warm-up", "sgd, momentum 0.9 (Nesterov)"),
        ({"lr_scaling": "none"}, "no warm-up", "sgd, momentum 0.9 (Nesterov)"),
        ({"momentum": 0.0}, "warm-up", "sgd, momentum 0,"),
        ({"optimizer": "lars"}, "warm-up", "lars, momentum 0.9,"),
        ({"method": "diloco"}, "no warm-up", "adamw, weight"),
    ],
)
def test_a_run_is_not_said_to_have_what_it_has_not(
    settings: dict, rising: str, optimizer: str
) -> None:
    said = dict(tables._configuration(plan_of(workers=8, **settings).run))
    assert f", {rising}" in said["learning rate"]
    assert said["optimizer"].startswith(optimizer)
