"""Times, accuracies and claims of records that can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.network.accuracy import __main__ as command
from benchmarks.network.accuracy.arms import DDP, GATHERED, TWO_PHASE
from benchmarks.network.accuracy.findings import claims, trained
from benchmarks.network.accuracy.outcome import outcomes
from benchmarks.network.accuracy.picture import mean_curve
from tests.benchmarks.network.accuracy.cases import RATE, SMALL, filled


def test_times_and_accuracies_are_paired_by_seed(tmp_path: Path) -> None:
    (outcome,) = outcomes(filled(tmp_path / "runs.jsonl"), SMALL)
    assert (outcome.rate, outcome.share.median) == (RATE, 0.5)
    assert outcome.arms() == [DDP, TWO_PHASE]
    times = outcome.times(TWO_PHASE)
    assert (times.least, times.median, times.most) == (0.25, 0.375, 0.5)
    assert outcome.points_below(TWO_PHASE) == [0.0, 6.25]
    # DDP has 50 % after its first epoch, at 2 s; signs get there at 2 s, or never.
    assert outcome.times_to_accuracy(TWO_PHASE) == [1.0, None]
    assert mean_curve([run for run, _ in outcome.pairs(TWO_PHASE)]) == ([0.75, 1.5], [25.0, 43.75])


def test_claims_are_judged_by_their_bounds(tmp_path: Path) -> None:
    store = filled(tmp_path / "runs.jsonl")
    time, accuracy, gathered, steps = claims(store, outcomes(store, SMALL), SMALL)
    assert (time.result, time.bound, time.holds) == (0.375, pytest.approx(1 / 1.7), True)
    assert (accuracy.result, accuracy.bound, accuracy.holds) == (3.125, 0.5, False)
    assert (gathered.result, gathered.figures["name"]) == (0.28125, GATHERED)
    assert (steps.result, steps.bound, steps.holds) == (0.25, pytest.approx(1 / 7), False)
    assert steps.cells["without communication"] == "0.125"


def test_a_single_seed_has_no_interval_and_is_told(tmp_path: Path) -> None:
    store = filled(tmp_path / "runs.jsonl")
    (outcome,) = outcomes(store, SMALL)
    del outcome.runs[DDP][0]
    _, line = trained(outcome, SMALL)
    assert line.cells["points from DDP"] == "-6.25"
    assert line.cells["times sooner"] == "[bold]4.00[/]"


def test_the_report_is_made_of_the_store_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (report, command):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    assert not command.report(filled(tmp_path / "t-runs.jsonl"), SMALL, "t")
    assert len((tmp_path / "t.jsonl").read_text().splitlines()) == 1 + 2 + 6
    assert len((tmp_path / "t-claims.jsonl").read_text().splitlines()) == 1 + 4
    assert "NaN" not in (tmp_path / "t.jsonl").read_text()
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tables", "--name", "nobody"], "no run of nobody"),
        (["--images", "100"], "multiple of 128"),
        (["--rate", "fast"], "rate 'fast' is not understood"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
