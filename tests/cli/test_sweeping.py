"""`localsgd sweep`: runs, shards, interruptions, shared first phases, table and pictures."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from localsgd.cli.swept import NAME, keep
from localsgd.train.config.vary import Point
from localsgd.train.engine.run_folder import Folder
from tests.cli.conftest import TINY, Command, Done, Ranks, Refused, same_end

SWEEP = ("sweep", *TINY, "--method", "post-local", "--vary", "local_steps=2,3", "--seeds", "0..1")
NAMES = [f"local_steps={h}-seed{seed}" for seed in (0, 1) for h in (2, 3)]


@pytest.fixture(scope="module")
def swept(done: Done) -> tuple[Path, str]:
    """The folder of a sweep, and what it printed."""
    return done(*SWEEP)


def test_forecast_table_and_pictures(swept: tuple[Path, str]) -> None:
    out, said = swept
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == [
        ".trunks",
        *sorted(NAMES),
    ]
    assert said.startswith("Sweep: 4 runs: about ")
    assert "; first phases that runs share save" in said
    for word in ("local_steps", "deviation", "95 % interval", "baseline", "Pictures:"):
        assert word in said
    for name in ("sweep.png", "comparison.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")


def test_show_has_the_table_again(command: Command, swept: tuple[Path, str]) -> None:
    out, said = swept
    ended = command("show", out)
    assert (ended.status, ended.err) == (0, "")
    table, _, costs = ended.out.partition("\n\n")
    assert table in said
    assert "95 % interval" in table
    assert "sent per" in costs


def test_a_shared_first_phase_is_trained_once_and_changes_no_bit(
    command: Command, swept: tuple[Path, str], whole: Path
) -> None:
    """Of the tiny run, which is one of the sweep's."""
    out, _ = swept
    assert same_end(out / "local_steps=3-seed0", whole)
    assert len(list((out / ".trunks").rglob("*.pt"))) == 2  # one of each seed, at the switch


def test_the_same_command_trains_nothing_twice(command: Command, swept: tuple[Path, str]) -> None:
    out, said = swept
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*")}
    ended = command(*SWEEP, "--out", out)
    assert ended.status == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/*")} == before
    assert ended.out.startswith("Sweep: 4 runs, 4 of them done\n")
    table = ended.out.partition("\n")[2]
    assert said.endswith(table)


def test_cut_off_it_goes_on_in_shards_and_the_whole_shows_the_table(
    command: Command, swept: tuple[Path, str], tmp_path: Path
) -> None:
    """The first shard is cut off in the first phase, and again in the second run."""
    out = tmp_path / "cut"
    first, second = ((*SWEEP, "--out", out, "--shard", f"{part}/2") for part in (1, 2))
    assert command(*first, at_step=(3, "SIGKILL")).status == -9
    cut_off = command(*first, at_step=(9, "SIGINT"))
    assert (cut_off.status, cut_off.err.count("\n")) == (130, 1)
    assert cut_off.err == "localsgd: interrupted; go on with: the same command\n"
    ended = command(*first)
    assert ended.status == 0
    assert "2 runs of 4 are not done yet" in ended.out
    assert {name for name in NAMES if (out / name).exists()} == set(NAMES[:2])  # of one seed
    assert "95 % interval" in command(*second).out
    assert command(*SWEEP, "--out", out).out.startswith("Sweep: 4 runs, 4 of them done")
    for name in NAMES:
        assert same_end(out / name, swept[0] / name)


def test_two_processes_sweep_as_one(ranks: Ranks, swept: tuple[Path, str], tmp_path: Path) -> None:
    out = tmp_path / "both"
    first, second = ranks(*2 * [[*SWEEP, "--out", out]])
    assert (first.status, first.err) == (0, "")
    assert (second.status, second.out, second.err) == (0, "", "")
    assert first.out.count("Pictures:") == 1
    for name in NAMES:
        assert same_end(out / name, swept[0] / name)


def watched(run: Path) -> list[dict[str, Any]]:
    """What was measured, without how long it took."""
    return [json.loads(line) for line in (run / "watched.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("reduction", ["exact", "ordered"])
def test_processes_that_measure_share_a_first_phase_and_change_no_bit(
    ranks: Ranks, reduction: str, tmp_path: Path
) -> None:
    """The switch is measured and not evaluated. The sweep is killed once in the shared phase."""
    more = ("--watch", "lambda_max:0.5:40,drift", "--evaluate-every", "3")
    more = (*more, "--reduction", reduction, "--precision", "float64", "--heartbeat-seconds", "5")
    alone, out = tmp_path / "alone", tmp_path / "swept"
    command = ["run", *TINY, "--method", "post-local", *more]
    for process in ranks(*2 * [[*command, "--out", alone]]):
        assert (process.status, process.err) == (0, "")
    settings = (*TINY, *more, "--method", "post-local")
    sweep = ["sweep", *settings, "--vary", "local_steps=2,3", "--seeds", "0", "--out", out]
    assert ranks(*2 * [sweep], at_step={1: (2, "SIGKILL")})[1].status == -9
    for process in ranks(*2 * [sweep]):
        assert (process.status, process.err) == (0, "")
    assert same_end(out / "local_steps=3-seed0", alone)
    assert watched(out / "local_steps=3-seed0") == watched(alone)
    assert {row["step"] for row in watched(alone)} == {0, 2, 4, 6, 7, 8, 10, 12}
    assert len(list((out / ".trunks").rglob("*.pt"))) == 2  # of one trunk, by process


def test_shards_that_start_at_once_do_not_trip_over_each_other(tmp_path: Path) -> None:
    old, new = (tmp_path / f"{NAME}.{word}.partial" for word in ("old", "new"))
    for path in (old, new):
        path.write_text("{")
    os.utime(old, (0, 0))
    swept = ["local_steps=1"], ["local_steps"], Point({"local_steps": 1}, {"local_steps": "1"})
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [keep(tmp_path, *swept) for _ in range(20)], range(4)))
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME, new.name]


def test_a_forecast_alone_trains_nothing(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "none"
    ended = command(*SWEEP, "--out", out, "--forecast")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines()[1:] == NAMES
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "sweep has nothing to vary; write --vary local_steps=1,4,16 lr=0.1,0.2"),
        (("--vary", "lrr=1"), "unknown setting 'lrr'; nearest: lr"),
        (("--vary", "lr=0.1,-2"), "--vary lr=-2: give a number > 0.0"),
        (("--vary", "method=local,lokal"), "method=lokal: unknown method 'lokal'"),
        (("--vary", "topology=4,2x", "--workers", "None"), "topology=2x: "),
        (("--vary", "outer_lr=1,2"), "outer_lr has no effect with method post-local"),
        (("--vary", "lr=0.1,0.10"), "lr=0.1-seed0 and lr=0.10-seed0 are the same run"),
        (("--vary", "lr=0.1,0.2", "--seeds", "4..0"), "--seeds '4..0' is not understood"),
        (("--vary", "lr=0.1,0.2", "--baseline", "lr=3"), "--baseline lr=3 is not among the runs"),
        (("--vary", "lr=0.1,0.2", "--baseline", "batch=3"), "batch, which is not varied"),
        (("--vary", "lr=0.1,0.2", "--shard", "3/2"), "shard '3/2' is not understood"),
        (
            ("--vary", "optimizer=sgd,adamw", "nesterov=true,false"),
            "nesterov has no effect with",
        ),
        (("--vary", "lr_warmup=0,3", "--lr-scaling", "none"), "lr_warmup has no effect with"),
        (
            ("--vary", "method/lr=local/None,diloco/None", "--baseline", "lr=None"),
            "--baseline lr=None stands for several values of a setting; vary the values themselves",
        ),
        (("--vary", "task=digits,wikitext-2"), "accuracy and by perplexity can't be compared"),
    ],
)
def test_mistakes_are_refused_before_anything_is_trained(
    arguments: tuple[str, ...], said: str, tmp_path: Path, refused: Refused
) -> None:
    settings = ("--task", "digits", "--workers", "4", "--out", tmp_path / "a")
    assert said in refused("sweep", *settings, *arguments)
    assert not (tmp_path / "a").exists()


def test_a_baseline_has_the_value_that_its_runs_are_completed_to(
    command: Command, tmp_path: Path
) -> None:
    """lr=None is the task's own rate, and differences are to the run with that."""
    out = tmp_path / "sweep"
    settings = (*TINY, "--epochs", "1", "--quiet", "--out", out, "--method", "local")
    ended = command("sweep", *settings, "--vary", "lr=None,0.02", "--seeds", "0")
    assert (ended.status, ended.err) == (0, "")
    (baseline,) = json.loads((out / "sweep.json").read_text())["baseline"].items()
    assert baseline == ("lr", str(Folder(out / "lr=None-seed0").run.lr))
    shown = command("show", out)
    assert (shown.status, shown.err) == (0, "")
    assert "baseline" in shown.out


def test_a_first_value_that_stands_for_several_is_no_baseline(
    command: Command, tmp_path: Path
) -> None:
    """The whole first configuration is, if none is asked for."""
    varied = ("--vary", "lr=None,0.02", "method=local,diloco", "--seeds", "0")
    ended = command("sweep", *TINY, "--out", tmp_path / "none", *varied, "--forecast")
    assert (ended.status, ended.err) == (0, "")


def test_another_sweep_is_refused(command: Command, swept: tuple[Path, str]) -> None:
    ended = command(*SWEEP, "--out", swept[0], "--lr", "0.3")
    assert ended.status == 2
    assert "holds a run with other settings" in ended.err
    *usual, _, _ = SWEEP
    ended = command(*usual, "--seeds", "2", "--out", swept[0])
    assert ended.status == 2
    assert "holds a sweep of other values or seeds; give those as well" in ended.err
    usual[usual.index("local_steps=2,3")] = "lr=0.1,0.2"
    ended = command(*usual, "--seeds", "0", "--out", swept[0])
    assert ended.status == 2
    assert f"{swept[0]} holds a sweep of local_steps, not of lr; give another fold" in ended.err
    one = swept[0] / NAMES[0]
    ended = command(*SWEEP, "--out", one)
    said = f"localsgd: {one} is the folder of one run; give another folder with --out\n"
    assert (ended.status, ended.err) == (2, said)


def test_compare_varies_too(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "compared"
    methods = ("--methods", "mini-batch", "local", "--vary", "lr=0.1,0.2", "--seeds", "5")
    short = ("--epochs", "0.5", "--switch", "first-decay")
    ended = command("compare", *TINY, *short, *methods, "--out", out)
    assert (ended.status, ended.err) == (0, "")
    names = [f"{method},lr={lr}-seed5" for method in ("local", "mini-batch") for lr in (0.1, 0.2)]
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == [".trunks", *names]
    assert Folder.open(out / names[1]).run.lr == 0.2
    assert "local, lr 0.2" in " ".join(ended.out.split())
