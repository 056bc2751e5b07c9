"""Tables and claims, from made-up times."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from experiments import convex_time
from experiments.claims import OPEN, verdict
from experiments.convex import claims, figures, report, study
from experiments.convex.command import Options, command
from experiments.convex.designs import LOCAL_STEPS, POWERS, methods, speedup_figure, time_figure
from experiments.convex.race import Reached
from experiments.convex.search import Best, Found
from experiments.convex.setup import hierarchical, local
from experiments.convex.stepsizes import StepSize
from experiments.convex.tables import cell, fastest, relative, spread, times
from localsgd.errors import UserError

matplotlib.use("Agg")


def found(steps: int, syncs: tuple[int, ...]) -> Found:
    reached = Reached(syncs[-1], 0.1, False, steps, syncs)
    size = StepSize("constant", 0)
    return Found((Best(size, reached, {"constant": (size, reached)}),), runs=13)


def test_times_are_gradients_and_syncs_by_seed() -> None:
    all_ = {
        local(16, 8, 2, seed=1): found(20, (10,)),
        local(16, 8, 2, seed=0): found(40, (20,)),
        hierarchical(4, 4, 8, (1, 4), seed=0): found(16, (12, 4)),
    }
    table = times(all_, 0, [1, 25])
    assert table[cell(16, 8, 2)].tolist() == [40 * 8 + 20 * 25, 20 * 8 + 10 * 25]
    (nested,) = (one for where, one in table.items() if where.method == "every(1) every(4)")
    assert nested.tolist() == [16 * 8 + 12 + 4 * 25]


def test_times_of_one_family_leave_out_where_it_was_given_up() -> None:
    all_ = {local(16, 8, h, seed=0): found(20, (10,)) for h in (1, 2)}
    given_up = found(20, (10,)).best[0]
    all_[local(16, 8, 2, seed=1)] = Found(
        (Best(given_up.size, given_up.reached, {"decaying": given_up.by_family["constant"]}),), 1
    )
    assert set(times(all_, 0)) == {cell(16, 8, 1), cell(16, 8, 2)}
    assert set(times(all_, 0, family="constant")) == {cell(16, 8, 1)}


def test_relative_to_the_fastest() -> None:
    table = {cell(16, 1, 1): np.array([8.0, 12.0]), cell(16, 2, 1): np.array([4.0, 6.0])}
    assert fastest(table) == cell(16, 2, 1)
    assert relative(table)[cell(16, 1, 1)].tolist() == [1.6, 2.4]


def three(*values: float) -> np.ndarray:
    return np.array(values)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        ((2.3, 2.4, 2.5, 2.4, 2.3), "reproduced"),
        ((2.1, 2.2, 1.9, 2.0, 2.1), OPEN),
        ((1.6, 1.5, 1.7, 1.5, 1.6), "not reproduced"),
        ((2.1, 2.2, 2.15), OPEN),
    ],
)
def test_verdicts_follow_the_one_rule(ratio: tuple[float, ...], expected: str) -> None:
    table = {cell(16, 16, 16): np.full(len(ratio), 10.0)}
    table |= {cell(16, 64, 1): 10 * three(*ratio), cell(16, 256, 1): 15 * three(*ratio)}
    assert [claim.verdict for claim in claims.of_time(table)] == [expected] * 2


def test_claims_of_a_figure_are_corrected_together() -> None:
    """p of 0.045 decides alone, and not beside another claim that is open."""
    table = {cell(16, 16, 16): np.full(5, 10.0)}
    table |= {cell(16, 64, 1): 10 * three(2.05, 2.5, 2.1, 2.6, 2.3)}
    table |= {cell(16, 256, 1): 10 * three(2.9, 3.2, 3.0, 3.1, 2.8)}
    first = claims.of_time(table)[0]
    assert verdict(first.test) == "reproduced"
    assert first.verdict == OPEN


def speedup_table(advantage: dict[int, float]) -> dict:
    """H = 16 is `advantage` times faster than the others at each K."""
    own, others = three(100, 111, 103, 104, 106), three(100, 110, 104, 103, 107)
    return {
        cell(workers, 16, h): own / advantage[workers] if h == 16 else others
        for workers in POWERS
        for h in LOCAL_STEPS
    }


def test_speedup_claims() -> None:
    fading = {workers: 3 - 0.25 * i for i, workers in enumerate(POWERS)}
    *best, fades = claims.of_speedup(speedup_table(fading))
    assert {claim.verdict for claim in [*best, fades]} == {"reproduced"}
    growing = {workers: 0.5 + 0.1 * i for i, workers in enumerate(POWERS)}
    *best, fades = claims.of_speedup(speedup_table(growing))
    assert best[0].verdict == "not reproduced"
    assert fades.verdict == "not reproduced"


def test_pages_and_figures_are_made(tmp_path: Path) -> None:
    over_workers = speedup_table(dict.fromkeys(POWERS, 2.0))
    over_batch = {cell(16, b, h): three(b + h, b + 2 * h) for b in POWERS for h in LOCAL_STEPS}
    by_target = {"f* + 0.005": over_batch, "the paper's f* + 0.005": over_batch}
    figures.time_figure(by_target, tmp_path / "time.png")
    figures.speedup_figure({"f* + 0.005": over_workers}, tmp_path / "speedup.png")
    figures.map_figure({"1": over_batch, "25": over_batch}, tmp_path / "map.png")
    assert {path.name for path in tmp_path.glob("*.png")} == {"time.png", "speedup.png", "map.png"}
    page = report.grid(over_batch)
    assert page.count("\n") == 1 + len(POWERS)
    assert "**2.50 ± 0.71**" in page.splitlines()[2]
    text = report.claims({name: claims.of_time(one) for name, one in by_target.items()})
    # 65 / 32 and 66 / 48 for the first claim, and two seeds, which decide nothing.
    assert text.count(f"| {OPEN} |") == 4
    assert text.count("| 1.70 ± 0.46x; difference -0.297, 95 % interval") == 2


def test_words() -> None:
    assert spread(three(1.0, 2.0)) == "1.50 ± 0.71"
    assert spread(three(1.0)) == "1.00"


def test_designs_hold_what_the_paper_names() -> None:
    assert len(time_figure()) == len(speedup_figure()) == 5 * 11 * 5
    assert local(16, 16, 16, 2) in time_figure()
    assert local(16, 256, 1, 0) in time_figure()
    assert len(set(methods())) == len(methods())
    named = {local(16, batch, h, 2) for batch, h in ((16, 16), (64, 1), (256, 1))}
    assert named <= set(time_figure(thin=True)) < set(time_figure())
    assert {setup.workers for setup in speedup_figure(thin=True)} == {1, 4, 16, 64, 256, 1024}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seeds": 0}, "0 seeds give no result; give 1 or more"),
        ({"communication": -1.0}, "a sync can't cost -1 gradients; give a number >= 0"),
        ({"communication": float("nan")}, "can't cost nan gradients"),
    ],
)
def test_options_that_make_no_sense(wrong: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Options(**wrong)


def test_a_command_ends_with_one_line_for_a_target_below_the_minimum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny").write_text("+1 1:1\n-1 1:1 2:1\n-1 2:1\n+1 2:0.5\n")
    monkeypatch.setattr(study, "_cache", lambda: tmp_path)
    arguments = ["--data", "tiny", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["convex_time", *arguments, "--epsilon", "-0.001"])
    with pytest.raises(SystemExit) as ended:
        command(convex_time.run)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "is not above the minimum f* = 0." in told
    assert "give f* + epsilon with epsilon > 0" in told
    assert not (tmp_path / "out").exists()
