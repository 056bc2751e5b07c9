"""Configurations and their differences to a baseline, on made-up runs, against numbers by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from localsgd.errors import UserError
from localsgd.results.contrasts import contrasts
from localsgd.results.grouping import differing, groups
from localsgd.train.config.vary import point
from localsgd.train.engine.run_folder import Folder
from tests.show.records import folder_of


def runs(place: Path, accuracies: dict[Any, list[float]], **settings: Any) -> list[Folder]:
    """A run for each learning rate and seed, with that accuracy at the end."""
    return [
        folder_of(place / f"{lr}-{seed}", [0.2, accuracy], lr=lr, seed=seed, **settings)
        for lr, by_seed in accuracies.items()
        for seed, accuracy in enumerate(by_seed)
    ]


def test_the_paired_difference_by_hand(tmp_path: Path) -> None:
    """Differences of 1, 2 and 3 points: mean 2, deviation 1, t of 2 degrees of freedom 4.3027."""
    folders = runs(tmp_path, {0.1: [0.5, 0.6, 0.7], 0.2: [0.51, 0.62, 0.73]})
    found = contrasts(groups(folders), ["lr"], point({"lr": "0.1"}))
    first, second = found.lines
    assert (first.n, first.baseline, first.difference) == (3, None, None)
    assert first.spread is not None
    assert (first.spread.mean, first.spread.deviation) == pytest.approx((60.0, 10.0))
    assert second.baseline == "lr 0.1"
    assert second.difference is not None
    half = 4.302653 / math.sqrt(3)
    assert (second.difference.low, second.difference.high) == pytest.approx(
        (2 - half, 2 + half), rel=1e-6
    )
    assert not second.decided  # of three seeds nothing is


def test_five_seeds_decide_and_holm_corrects(tmp_path: Path) -> None:
    base = [0.5, 0.52, 0.51, 0.53, 0.5]
    better = [
        value + shift for value, shift in zip(base, (0.1, 0.11, 0.09, 0.1, 0.12), strict=True)
    ]
    folders = runs(tmp_path, {0.1: base, 0.2: better, 0.4: list(reversed(base))})
    found = contrasts(groups(folders), ["lr"], point({"lr": "0.1"}))
    assert [line.decided for line in found.lines] == [False, True, False]
    alone = contrasts(groups(folders[:10]), ["lr"], point({"lr": "0.1"}))
    assert found.lines[1].p == pytest.approx(2 * alone.lines[1].p)


def test_each_is_compared_with_the_baseline_of_its_own_other_settings(tmp_path: Path) -> None:
    folders = [
        folder_of(tmp_path / f"{h}-{lr}", [0.2, value], local_steps=(h,), lr=lr, method="local")
        for (h, lr), value in {(1, 0.1): 0.5, (1, 0.2): 0.6, (4, 0.1): 0.51, (4, 0.2): 0.63}.items()
    ]
    found = groups(folders)
    assert set(differing(found)) == {"local_steps", "lr"}
    table = contrasts(found, ["local_steps", "lr"], point({"local_steps": "1"}))
    differences = [line.difference for line in table.lines]
    assert differences[:2] == [None, None]
    assert [round(one.mean, 6) for one in differences[2:] if one] == [1.0, 3.0]


def test_seeds_that_one_side_lacks_are_left_out_and_nothing_is_decided(tmp_path: Path) -> None:
    base = [0.5, 0.52, 0.51, 0.53, 0.5, 0.51]
    better = [value + 0.1 + 0.01 * (seed % 2) for seed, value in enumerate(base)]
    folders = runs(tmp_path, {0.1: base, 0.2: better})
    assert contrasts(groups(folders), ["lr"], point({"lr": "0.1"})).lines[1].decided
    (tmp_path / "0.2-5" / "summary.json").unlink()
    line = contrasts(groups(folders), ["lr"], point({"lr": "0.1"})).lines[1]
    assert (line.n, line.runs, line.decided) == (5, 6, False)
    assert line.difference is not None
    assert line.difference.n == 5


def test_of_a_diverged_run_there_is_no_mean(tmp_path: Path) -> None:
    folders = runs(tmp_path, {0.1: [0.5, 0.6], 0.2: [0.5, 0.1]})
    path = tmp_path / "0.2-1" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "diverged": True}))
    line = contrasts(groups(folders), ["lr"], point({"lr": "0.1"})).lines[1]
    assert (line.diverged, line.spread, line.difference) == (1, None, None)


def test_what_is_refused(tmp_path: Path) -> None:
    folders = runs(tmp_path, {0.1: [0.5], 0.2: [0.6]})
    with pytest.raises(UserError, match=r"lr=0.3 is not among the runs, which have lr: 0.1, 0.2"):
        contrasts(groups(folders), ["lr"], point({"lr": "0.3"}))
    twice = [*folders, folder_of(tmp_path / "again", [0.2, 0.5], lr=0.1)]
    with pytest.raises(UserError, match="is not the only run with its settings and seed 0"):
        contrasts(groups(twice), ["lr"], None)
