"""Which runs belong together, and what they are called."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from localsgd.cli.training import complete
from localsgd.results.grouping import Spread, differing, groups
from localsgd.results.labels import local_steps
from localsgd.train.config.run import Run, to_json
from localsgd.train.engine.run_folder import Folder
from tests.show.records import ROW_BYTES, folder_of


def test_seeds_are_one_group_and_methods_are_others(tmp_path: Path) -> None:
    folders = [
        folder_of(tmp_path / "a", [0.5, 0.8], seed=0),
        folder_of(tmp_path / "b", [0.5, 0.7], method="local"),
        folder_of(tmp_path / "c", [0.5, 0.9], seed=1),
    ]
    first, second = groups(folders)
    assert [record.folder for record in first.records] == [folders[0], folders[2]]
    assert (first.title, second.title) == ("post-local, H = 1→8", "local, H = 8")


def test_names_say_what_differs(tmp_path: Path) -> None:
    folders = [
        folder_of(tmp_path / "a", [0.5], lr=0.1),
        folder_of(tmp_path / "b", [0.5], lr=0.2, lr_decay_at=(0.5,)),
    ]
    assert [group.label for group in groups(folders)] == [
        "post-local, lr 0.1, lr_decay_at 0.5 0.75",
        "post-local, lr 0.2, lr_decay_at 0.5",
    ]


def test_packages_are_named_only_if_nothing_else_tells_runs_apart(tmp_path: Path) -> None:
    def of(name: str, *plugins: str, lr: float = 0.1) -> Folder:
        folder = folder_of(tmp_path / name, [0.5], lr=lr)
        run = msgspec.structs.replace(folder.run, plugins=plugins)
        (folder.path / "run.json").write_bytes(to_json(run))
        return folder

    first, second = of("a", "task a: b 1"), of("b", "task a: b 2")
    other = of("c", "model c: d 1", lr=0.2)
    assert differing(groups([first, other])) == ["lr"]
    assert differing(groups([first, second])) == ["plugins"]
    assert differing(groups([first, second, other])) == ["lr", "plugins"]


def test_settings_that_a_method_does_not_read_part_nothing(tmp_path: Path) -> None:
    folders = [
        folder_of(tmp_path / "a", [0.5], method="mini-batch", switch="step:3"),
        folder_of(tmp_path / "b", [0.5], method="mini-batch", seed=1),
        folder_of(tmp_path / "c", [0.5], switch="step:3"),
    ]
    assert [(group.label, len(group.records)) for group in groups(folders)] == [
        ("mini-batch", 2),
        ("post-local", 1),
    ]


def test_spread_by_hand() -> None:
    assert Spread.of([]) is None
    assert Spread.of([3.0]) == Spread(3.0, None)
    assert Spread.of([1.0, 3.0]) == Spread(2.0, pytest.approx(2**0.5))


def test_a_curve_is_over_runs_that_have_ended_or_ends_where_not_all_are_yet(tmp_path: Path) -> None:
    """A mean over fewer runs than before would jump where one of them stops."""
    ended = folder_of(tmp_path / "a", [0.2, 0.8], method="mini-batch", seed=0)
    begun = folder_of(tmp_path / "b", [0.4, 0.9], method="mini-batch", seed=1, ended=False)
    other = folder_of(tmp_path / "c", [0.2, 0.8], method="mini-batch", seed=0)
    (group,) = groups([ended, begun])
    first, second = group.curve
    assert (first.quality, second.quality) == (Spread(0.2, None), Spread(0.8, None))
    steps = 4 * 1437 // 128
    assert first.bytes == (steps // 2 * ROW_BYTES,)
    assert second.bytes == (steps * ROW_BYTES,)
    (other.path / "summary.json").unlink()
    (group,) = groups([other, begun])
    (first,) = group.curve
    assert first.quality == Spread(pytest.approx(0.3), pytest.approx(0.02**0.5))


def test_a_spread_beyond_a_float_is_infinite() -> None:
    """`**` would raise, and the losses of runs that diverge may be as large."""
    found = Spread.of([1e308, -1e308])
    assert found == Spread(0.0, math.inf)


def test_h_that_the_run_chooses_is_said_so() -> None:
    for method, says in (("waiting", "by the run"), ("mini-batch", "1"), ("local", "8")):
        assert local_steps(complete(Run(method=method))) == says
