"""What is kept is found again, by the same setting alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.network.accuracy.setting import Setting
from benchmarks.network.accuracy.store import Store
from benchmarks.network.refusal import Refused
from localsgd.errors import UserError
from tests.benchmarks.network.accuracy.cases import SMALL


def test_a_line_cut_short_is_passed_over_and_the_next_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    Store(path, SMALL).add({"kind": "run", "seed": 0})
    with path.open("a") as file:
        file.write('{"kind": "ru')
    Store(path, SMALL).add({"kind": "run", "seed": 1})
    found = Store(path, SMALL)
    assert [one["seed"] for one in found.all(kind="run")] == [0, 1]
    assert found.find(kind="run", seed=2) is None


def test_another_setting_sees_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    Store(path, SMALL).add({"kind": "run"})
    assert not Store(path, replace(SMALL, learning_rate=0.3)).all()
    assert len(Store(path, SMALL).all()) == 1


def test_post_local_leaves_at_the_first_decay() -> None:
    setting = Setting()
    rate = setting.rate()
    assert setting.steps == 1024
    assert rate(setting.switch - 1) == setting.learning_rate
    assert rate(setting.switch) == pytest.approx(0.1 * setting.learning_rate)
    assert not setting.switch % setting.local_steps


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": 100}, "multiple of 32"),
        ({"epochs": 0}, "1 epoch"),
        ({"judged_every": 0}, "a divisor"),
        ({"epochs": 4, "judged_every": 3}, "4 epochs can't be judged after every 3"),
        ({"step_warmup": 1.0}, "can't take 1 of the run"),
        ({"judged": 17}, "no fewer at the end"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict, said: str) -> None:
    with pytest.raises(Refused, match=said):
        replace(SMALL, **changes)


@pytest.mark.parametrize("line", ["5", "[]", "{}", '{"setting": 5}'])
def test_a_line_that_is_no_record_is_refused_by_its_file(tmp_path: Path, line: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text("[" * 100_000 + f"\n{line}\n")
    with pytest.raises(UserError, match=r"runs.jsonl:2 is damaged: .*; take the line out"):
        Store(path, SMALL)
    path.write_bytes(b"\xff\n")
    with pytest.raises(UserError, match=r"runs.jsonl is no text"):
        Store(path, SMALL)
