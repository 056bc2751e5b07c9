from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from experiments import registry
from experiments.listing import cost, overview
from experiments.registry import entries, entry
from experiments.reproduce import Request, reproduce
from experiments.scales import SCALES
from experiments.studies import studies
from localsgd.cli import main
from localsgd.errors import UserError
from localsgd.train.config.methods import METHODS
from localsgd.train.data import tasks
from tests.experiments.labels import LABELS


def test_every_label_of_the_paper_is_there_once_and_in_order() -> None:
    assert tuple(entries()) == LABELS
    assert len(set(LABELS)) == 36


def test_names_are_short_and_no_two_alike() -> None:
    names = [found.name for found in entries().values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]{3,22}", name) for name in names)


def test_a_panel_is_found_by_its_own_label() -> None:
    panels = [panel for found in entries().values() for panel in found.panels]
    assert len(set(panels) | set(LABELS)) == len(panels) + len(LABELS)
    assert entry("fig:convex_time").name == entry("fig:convex_speedup").name == "convex"


@pytest.mark.parametrize("label", LABELS)
def test_an_entry_fits_together(label: str) -> None:
    found = entry(label)
    assert entry(found.name) is found
    assert bool(found.rows) == bool(found.columns)
    assert found.rows or found.kind != "table"
    for row in found.values:
        assert row.get("task", "cifar10") in tasks.task_names()
        assert 0 <= row.get("test_accuracy", 50) <= 100
        assert 0 <= row.get("deviation", 0) < 1
    for model, task, epochs, runs in found.training:
        assert task in tasks.task_names()
        assert model
        assert epochs in (90, 120, 250, 300, 400, 500)
        assert runs > 0


def test_methods_are_called_as_in_the_library() -> None:
    usual = {
        row["method"] for found in entries().values() for row in found.values if "method" in row
    }
    assert usual - METHODS.keys() == {"noise", "mean", "majority"}  # optimizers and reducers


def test_numbers_that_stand_in_several_tables_are_the_same() -> None:
    """As the paper has them; the notes name the exceptions (a slip in the table of noise)."""
    nets = {
        (r["model"], r["task"], r["workers"], r["local_steps"]): (
            r["test_accuracy"],
            r["deviation"],
        )
        for r in entry("nets").values
    }
    noise = {
        (r["task"], r["method"]): (r["test_accuracy"], r["deviation"])
        for r in entry("noise").values
    }
    assert noise["cifar10", "mini-batch"] == nets["resnet20", "cifar10", 16, 1]
    assert noise["cifar10", "post-local"] == nets["resnet20", "cifar10", 16, 32]
    larger = {tuple(r)[1:] for r in entry("larger-batch").rows if r[0] == "resnet20"}
    longer = {tuple(r)[1:] for r in entry("longer").rows if r[0] == 300}
    assert larger == longer


def test_costs_follow_from_models_data_and_runs() -> None:
    """Forward and backward passes of ResNet-20 over 50,000 images, 300 times, in 15 runs."""
    arms = entry("arms")
    assert arms.operations == 6 * 40_813_184 * 50_000 * 300 * 15
    assert cost(arms) == "6 d 9 h"
    assert entry("lstm").operations == 6 * 30 * 31_770_700 * 69_620 * 120 * 12
    assert entry("rounds").operations == 0


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown table or figure 'sign'; nearest: signs"):
        entry("sign")
    with pytest.raises(UserError, match="nearest: tab:lstm_lm_ppl"):
        entry("tab:lstm_lm_pp")


def test_a_row_of_another_length_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    text = registry.PAPER.read_text(encoding="utf-8")
    spoilt = text.replace('["A1", 1, 128, 1,', '["A1", 1, 128,', 1)
    path = tmp_path / "paper.toml"
    path.write_text(spoilt, encoding="utf-8")
    monkeypatch.setattr(registry, "PAPER", path)
    entries.cache_clear()
    try:
        with pytest.raises(ValueError, match="does not fit the columns"):
            entries()
    finally:
        entries.cache_clear()


def test_the_list_has_every_label(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    console = Console(width=400, file=io.StringIO(), record=True)
    console.print(overview(tmp_path))
    said = console.export_text()
    for label, found in entries().items():
        line = next(line for line in said.splitlines() if label + " " in line)
        assert found.name in line
        if studies()[label].jobs(SCALES["small"]):
            assert re.search(r"0/\d+, .* 0/\d+, .* 0/\d+, ", line)
    assert main(["reproduce", "--list"]) == 0
    assert "paper's tables and figures" in capsys.readouterr().out


def test_what_the_paper_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "tab:lstm_lm_ppl", "convex", "--show"]) == 0
    said = capsys.readouterr().out
    assert "86.85" in said
    assert "12 runs of lstm on wikitext-2, 120 epochs each" in said
    assert "localsgd reproduce lstm" in said


def test_names_or_all_or_the_list() -> None:
    for request in (
        Request(),
        Request(("signs",), listing=True),
        Request(("signs",), everything=True),
    ):
        with pytest.raises(UserError, match="needs labels or short names, --all"):
            reproduce(request)
    for request, words in (
        (Request(("signs",), shard="0/3"), "shard '0/3' is not understood"),
        (Request(("signs",), seeds=0), "--seeds 0 cannot be"),
        (Request(("sings",)), "unknown table or figure 'sings'; nearest: signs"),
    ):
        with pytest.raises(UserError, match=words):
            reproduce(request)


def test_without_a_checkout_one_line_says_so(monkeypatch, tmp_path) -> None:
    from localsgd.cli import reproducing
    from localsgd.cli.options import ReproduceCommand

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproducing.localsgd, "__file__", str(tmp_path / "a" / "b" / "__init__.py"))
    with pytest.raises(UserError, match="give a checkout of the repository with --checkout"):
        reproducing.reproduce(ReproduceCommand(list=True))


def test_the_current_folder_is_no_checkout(monkeypatch, tmp_path) -> None:
    """A stranger's `experiments` that lies where one stands is not imported."""
    from localsgd.cli import reproducing

    (tmp_path / "experiments").mkdir()
    for name in ("__init__", "registry", "reproduce"):
        (tmp_path / "experiments" / f"{name}.py").write_text("raise AssertionError('executed')")
    monkeypatch.chdir(tmp_path)
    found = reproducing.experiments_module("experiments.reproduce", None)
    assert Path(found.__file__ or "").parents[1] == Path(reproducing.localsgd.__file__).parents[2]
    for module in [name for name in sys.modules if name.partition(".")[0] == "experiments"]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(AssertionError, match="executed"):
        reproducing.experiments_module("experiments.reproduce", tmp_path)
    sys.path.remove(str(tmp_path))
