"""The order of runs that lie in one folder."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from localsgd.results.order import by_settings, of_value
from localsgd.results.rows import folders_of
from localsgd.train.config.run import Run
from tests.show.records import folder_of


@pytest.mark.parametrize(
    "ordered",
    [
        [None, 0.05, 0.1, 2, 16],
        [None, (1,), (4,), (16,)],
        [(2, 2), (2, 16), (4, 1), (16, 2)],
        ["2", "4x2", "4x16", "16x2"],
        ["mlp-4", "mlp-32", "mlp-256", "resnet8", "resnet20"],
        ["epoch:0.5", "epoch:2", "epoch:10", "first-decay", "step:9", "step:1e2"],
    ],
)
def test_numbers_are_sorted_by_their_size(ordered: list[Any]) -> None:
    shuffled = random.Random(0).sample(ordered, len(ordered))
    assert sorted(shuffled, key=of_value) == ordered


def test_every_value_of_a_run_can_be_compared() -> None:
    """Values of different kinds, such as a number of steps and none, or a name and a number."""
    one = Run(sign_scales="row", local_steps=(2, 8), lr=0.1, options=("a.b=1",), slowdown=(1.0, 2))
    assert sorted([one, Run(sign_scales=8)], key=by_settings) == [Run(sign_scales=8), one]


def test_the_runs_in_a_folder_are_in_order_and_seeds_come_last(tmp_path: Path) -> None:
    wanted = [(h, seed) for h in (1, 4, 16) for seed in (0, 2, 10)]
    for h, seed in random.Random(0).sample(wanted, len(wanted)):
        name = f"local_steps={h}-seed{seed}"
        folder_of(tmp_path / name, [0.5], method="local", local_steps=(h,), seed=seed)
    found = [(folder.run.local_steps, folder.run.seed) for folder in folders_of(tmp_path)]
    assert found == [((h,), seed) for h, seed in wanted]
    last, first = tmp_path / "local_steps=16-seed0", tmp_path / "local_steps=1-seed0"
    assert [folder.path for folder in folders_of([last, first])] == [last, first]
