from __future__ import annotations

from pathlib import Path

import pytest

from localsgd.cli.comparing import compared
from localsgd.cli.main import _parse
from localsgd.cli.training import complete
from localsgd.train.config.complete import complete_run
from localsgd.train.config.run import Run, to_json
from localsgd.train.data.tasks import card
from localsgd.train.engine.run_folder import Folder
from tests.cli.conftest import TINY, Command, Done, Ranks, Refused, same_end

COMPARE = ("compare", *TINY, "--methods", "mini-batch", "local")


@pytest.fixture(scope="module")
def comparison(done: Done) -> tuple[Path, str]:
    """The folder of a comparison, and what it printed."""
    return done(*COMPARE)


def test_table_and_picture(comparison: tuple[Path, str]) -> None:
    out, said = comparison
    names = sorted(path.name for path in out.iterdir())
    assert names == [".trunks", "comparison.png", "local", "mini-batch"]
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    for word in ("mini-batch", "local", "test", "rounds", "Picture:"):
        assert word in said
    assert Folder.open(out / "mini-batch").run.method == "mini-batch"
    assert Folder.open(out / "local").run.local_steps == (3,)


def test_the_same_command_trains_nothing_twice(
    command: Command, comparison: tuple[Path, str]
) -> None:
    out, said = comparison
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*")}
    ended = command(*COMPARE, "--out", out)
    assert ended.status == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/*")} == before
    assert "epoch 1.0" not in ended.out
    assert ended.out == said[said.index(ended.out[:40]) :]


def test_cut_off_in_the_second_run_it_goes_on_there(
    command: Command, comparison: tuple[Path, str], tmp_path: Path
) -> None:
    """The first is cut off at step 6, the second, which resumes it, at step 12 of it."""
    out = tmp_path / "cut"
    for step in (6, 8):
        assert command(*COMPARE, "--out", out, "--quiet", at_step=(step, "SIGKILL")).status == -9
    assert command(*COMPARE, "--out", out, "--quiet").out == ""
    for name in ("mini-batch", "local"):
        assert same_end(out / name, comparison[0] / name)


def test_two_processes_compare_as_one(
    ranks: Ranks, comparison: tuple[Path, str], tmp_path: Path
) -> None:
    out = tmp_path / "both"
    first, second = ranks(*2 * [[*COMPARE, "--out", out]])
    assert (first.status, first.err) == (0, "")
    assert (second.status, second.out, second.err) == (0, "", "")
    assert first.out.count("Picture:") == 1
    for name in ("mini-batch", "local"):
        assert same_end(out / name, comparison[0] / name)


def test_another_comparison_is_refused(command: Command, comparison: tuple[Path, str]) -> None:
    ended = command(*COMPARE, "--out", comparison[0], "--lr", "0.3")
    assert ended.status == 2
    assert "holds a run with other settings; give another folder with --out" in ended.err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("--workers", "7", "--topology", "2x2"), "workers = 7, but topology 2x2 has 4"),
        (("--topology", "4", "--local-steps", "2", "3"), "2 numbers for the 1 level of topology"),
    ],
)
def test_settings_that_contradict_are_refused(
    settings: tuple[str, ...], said: str, tmp_path: Path, refused: Refused
) -> None:
    """As they are by `run`, though a flat method puts a tree's workers and steps together."""
    arguments = ("compare", "--task", "digits", "--methods", "local", "--out", tmp_path / "a")
    assert said in refused(*arguments, *settings)
    assert not (tmp_path / "a").exists()


def test_seeds_are_runs(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "seeds"
    short = ("--epochs=0.25", "--switch=first-decay", "--methods", "local", "--seeds", "3", "4")
    ended = command("compare", *TINY, *short, "--out", out, "--quiet")
    assert (ended.status, ended.out, ended.err) == (0, "", "")
    assert [Folder.open(out / f"local-seed{seed}").run.seed for seed in (3, 4)] == [3, 4]


def test_flat_methods_get_all_workers_and_the_product_of_h(
    command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "levels"
    short = ("--epochs", "0.5", "--switch", "first-decay", "--workers", "None")
    levels = ("--topology", "2x2", "--local-steps", "2", "3", "--methods", "local", "hierarchical")
    ended = command("compare", *TINY, *short, *levels, "--out", out, "--quiet")
    assert (ended.status, ended.err) == (0, "")
    flat, nested = (Folder.open(out / name).run for name in ("local", "hierarchical"))
    assert (flat.topology, flat.local_steps) == ("4", (6,))
    assert (nested.topology, nested.local_steps) == ("2x2", (2, 3))


def test_show(command: Command, comparison: tuple[Path, str], tmp_path: Path) -> None:
    out, _ = comparison
    one = command("show", out / "local")
    assert (one.status, one.err) == (0, "")
    assert "local" in one.out
    picture = tmp_path / "runs.svg"
    two = command("show", out / "local", out / "mini-batch", "--figure", picture)
    assert (two.status, two.err) == (0, "")
    assert "mini-batch" in two.out
    assert "<svg" in picture.read_text()


def test_tasks(command: Command) -> None:
    ended = command("tasks")
    assert (ended.status, ended.err) == (0, "")
    for word in ("digits", "cifar10", "1,437", "not on this", "post-local", "resnet20", "Methods"):
        assert word in ended.out


def test_methods_choose_for_themselves_what_a_config_had_from_its_own(tmp_path: Path) -> None:
    config = tmp_path / "run.json"
    config.write_bytes(to_json(complete_run(Run(method="diloco", task="digits"), card("digits"))))
    given = [f"--config={config}", "--out", str(tmp_path / "out")]
    methods = ["--methods", "local", "slowmo", "ef-sign", "diloco"]
    runs = compared(_parse(["compare", *given, *methods]))
    assert {name: (run.outer, run.compression, run.optimizer) for name, run in runs.items()} == {
        "local": ("average", "none", "sgd"),
        "slowmo": ("slowmo", "none", "sgd"),
        "ef-sign": ("average", "ef-sign", "sgd"),
        "diloco": ("diloco", "none", "adamw"),
    }
    other = complete(_parse(["run", *given, "--method", "local"]).run)
    assert (other.outer, other.optimizer) == ("average", "sgd")
    same_method = complete(_parse(["run", *given, "--seed", "1"]).run)
    assert (same_method.outer, same_method.optimizer) == ("diloco", "adamw")
    kept = complete(_parse(["run", *given, "--method", "local", "--optimizer", "adam"]).run)
    assert (kept.outer, kept.optimizer) == ("average", "adam")


def test_what_a_config_sets_against_its_preset_stays(tmp_path: Path) -> None:
    config = tmp_path / "run.json"
    wanted = complete_run(Run(method="local", compression="int8", task="digits"), card("digits"))
    config.write_bytes(to_json(wanted))
    given = [f"--config={config}", "--out", str(tmp_path / "out"), "--methods", "local", "slowmo"]
    runs = compared(_parse(["compare", *given]))
    assert [run.compression for run in runs.values()] == ["int8", "int8"]
