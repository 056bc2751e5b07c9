"""`localsgd export`: long form and tables, in four kinds of files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from localsgd.cli import main
from localsgd.results import rows
from tests.cli.conftest import Refused
from tests.results.test_sheet import cells_of
from tests.show.records import folder_of


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    for lr, by_seed in {0.1: [0.5, 0.6], 0.2: [0.51, 0.63]}.items():
        for seed, value in enumerate(by_seed):
            folder_of(tmp_path / "sweep" / f"{lr}-{seed}", [0.2, value], lr=lr, seed=seed)
    return tmp_path / "sweep"


def test_files_in_long_form(sweep: Path, tmp_path: Path) -> None:
    place = tmp_path / "new" / "long.csv"
    assert main(["export", str(sweep), "--csv", str(place)]) == 0
    with place.open() as file:
        found = list(csv.DictReader(file))
    whole = rows([sweep])
    assert [list(row) for row in found] == [list(row) for row in whole]
    for name in ("run", "lr", "test_accuracy_fraction", "sent_bytes_level_1", "training_seconds"):
        assert [row[name] for row in found] == [str(row[name]) for row in whole]


def test_parquet_is_the_same(sweep: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    place = tmp_path / "long.parquet"
    assert main(["export", str(sweep), "--parquet", str(place)]) == 0
    found = parquet.read_table(place).to_pylist()
    whole = rows([sweep])
    assert [list(row.values()) for row in found] == [list(row.values()) for row in whole]


def test_tables_with_differences(sweep: Path, tmp_path: Path) -> None:
    """1 and 3 points: mean 2, and t of one degree of freedom is 12.706."""
    place = tmp_path / "table"
    arguments = ["--latex", f"{place}.tex", "--markdown", f"{place}.md", "--baseline", "lr=0.1"]
    assert main(["export", str(sweep), *arguments]) == 0
    head, first, second = cells_of(Path(f"{place}.tex").read_text())
    assert head[:2] == ["lr", "n"]
    assert first[:5] == ["0.1", "2", "55.00", "7.07", "baseline"]
    assert second[:6] == ["0.2", "2", "57.00", "8.49", "+2.00", "-10.71 to +14.71"]
    assert "| 0.2 | 2 | 57.00 | 8.49 | +2.00 |" in Path(f"{place}.md").read_text()


def test_differences_wait_for_all_runs_of_a_sweep(
    sweep: Path, tmp_path: Path, refused: Refused
) -> None:
    """Those that are there may be the best ones, and are fewer to correct for."""
    names = [path.name for path in sweep.iterdir()]
    table = ("--latex", tmp_path / "table.tex")
    for runs, whole in ((names, True), ([*names, "0.3-0"], False)):
        kept = {"runs": runs, "varied": ["lr"], "baseline": {"lr": "0.1"}}
        (sweep / "sweep.json").write_text(json.dumps(kept))
        if whole:
            assert main(["export", str(sweep), *map(str, table), "--baseline", "lr=0.1"]) == 0
        else:
            said = refused("export", sweep, *table, "--baseline", "lr=0.1")
            assert f"4 of 5 runs of the sweep in {sweep} have begun" in said
    assert main(["export", str(sweep), *map(str, table)]) == 0


def test_evaluations_as_a_table_leave_out_what_all_share(sweep: Path, tmp_path: Path) -> None:
    place = tmp_path / "all.tex"
    assert main(["export", str(sweep), "--latex", str(place), "--by", "evaluation"]) == 0
    head, *found = cells_of(place.read_text())
    assert len(found) == 8
    assert "lr" in head
    assert "task" not in head


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing to write; give --csv"),
        (("--csv", "."), "--csv . is a folder"),
        (("--latex", "a.tex", "--baseline", "lr=7"), "--baseline lr=7 is not among the runs"),
        (("--latex", "a.tex", "--baseline", "lr"), "--baseline 'lr' is not understood"),
        (("--csv", "a.csv", "--by", "evaluation", "--baseline", "lr=1"), "--baseline is for lines"),
    ],
)
def test_mistakes(
    arguments: tuple[str, ...],
    said: str,
    sweep: Path,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(sweep.parent)
    assert said in refused("export", sweep, *arguments)
    assert not list(sweep.parent.glob("a.*"))
