"""The example package: installed without a network, chosen by name, trained by two processes."""

from __future__ import annotations

import json
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.cli.conftest import Command, Ranks
from tests.runs import same

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
RUN = (
    *("--task", "sums", "--model", "tiny-gpt", "--method", "doubling", "--local-steps", "4"),
    *("--compression", "two-bit", "--outer", "part-way", "--workers", "4", "--epochs", "2"),
    *("--options", "two-bit.fraction=0.05", "doubling.period=5", "part-way.share=0.9"),
    *("--compression-way", "gather", "--reduction", "ordered", "--quiet"),
)
"""25 steps: rounds of 1 until step 5, of 2 until 11, of 4 until 23, and 2 steps more."""

TWO_BIT = ("--use", "localsgd_sums", "--compression", "two-bit", "--options")


def installed(folder: Path, version: str = "0.1.0") -> str:
    """A folder as pip fills it with `--target`: the package, and what it declares."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLE / "localsgd_sums", folder / "localsgd_sums")
    about = folder / f"localsgd_sums-{version}.dist-info"
    about.mkdir()
    name = project["name"]
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    return installed(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def trained(ranks: Ranks, site: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run, by two processes, for which the package is installed."""
    out = tmp_path_factory.mktemp("trained") / "run"
    arguments = ["run", *RUN, "--out", out]
    ended = ranks(arguments, arguments, PYTHONPATH=site)
    assert [process.status for process in ended] == [0, 0], ended
    return out


def test_two_processes_train_it_as_one_does_by_use(
    trained: Path,
    command: Command,
    tmp_path: Path,
) -> None:
    shutil.copytree(EXAMPLE / "localsgd_sums", tmp_path / "site" / "localsgd_sums")
    out = tmp_path / "run"
    only_named = {"PYTHONPATH": str(tmp_path / "site"), "COLUMNS": "200"}
    loud = (word for word in RUN if word != "--quiet")
    ended = command("run", "--use", "localsgd_sums", *loud, "--out", out, **only_named)
    assert ended.status == 0, ended.err
    preview = ended.out[: ended.out.index("epoch 1.0")]
    for part in ("two-bit (fraction 0.05)", "part-way (share 0.9)", "(period 5)"):
        assert part in preview
    assert same(*(load_file(path / "model.safetensors") for path in (trained, out)))
    summary, other = (json.loads((path / "summary.json").read_text()) for path in (trained, out))
    assert summary["syncs"] == other["syncs"] == [5 + 3 + 3 + 1]
    # 4 bytes for the scale, 2 bits and 32 bits for 5 % of the scalars.
    k = -(-sum(t.numel() for t in load_file(out / "model.safetensors").values()) // 20)
    payload, once = 4 + -(-k // 4) + 4 * k, 8 * 3  # where members lie is told once
    assert summary["ledger"][0]["bytes"] == summary["syncs"][0] * payload + once
    assert plugins(trained)[0] == "task sums: localsgd-sums 0.1.0"
    assert plugins(out)[0] == "task sums: localsgd_sums 0.1.0"


def test_options_of_a_model(command: Command, tmp_path: Path) -> None:
    """They make the model; a resumed run has them, and so do landscapes and sweeps."""
    named = {"PYTHONPATH": str(EXAMPLE)}
    run, use = tmp_path / "run", ("--use", "localsgd_sums")
    settings = (*use, "--task", "sums", "--workers", "2", "--train-samples", "64", "--epochs", "1")
    settings = (*settings, "--method", "local", "--options", "tiny-gpt.width=8")
    loud = {**named, "COLUMNS": "200"}
    cut_off = command("run", *settings, "--out", run, at_step=(2, "SIGINT"), **loud)
    assert "tiny-gpt (width 8): " in cut_off.out
    assert cut_off.status == 130, cut_off.err
    assert command("resume", run, *use, **named).status == 0
    assert load_file(run / "model.safetensors")["head.weight"].shape[1] == 8
    wrong = command("run", *settings[:-1], "tiny-gpt.widths=8", "--out", tmp_path / "no", **named)
    assert "unknown option of tiny-gpt 'widths'; nearest: width" in wrong.err
    failing = command("run", *settings[:-1], "tiny-gpt.width=6", "--out", tmp_path / "no", **named)
    assert "the model tiny-gpt of localsgd_sums 0.1.0 failed at " in failing.err


def plugins(folder: Path) -> Any:
    return json.loads((folder / "run.json").read_text())["plugins"]


def test_the_run_records_names_versions_and_options(trained: Path) -> None:
    run = json.loads((trained / "run.json").read_text())
    assert [text.partition(":")[0] for text in run["plugins"]] == [
        *("task sums", "model tiny-gpt", "method doubling", "compression two-bit"),
        "outer part-way",
    ]
    assert "two-bit.fraction=0.05" in run["options"]


def test_help_and_the_list_of_tasks_have_its_names_and_options(
    command: Command,
    site: str,
) -> None:
    said = command("run", "--help", PYTHONPATH=site, COLUMNS="300").out
    options = ("two-bit.fraction=0.01", "doubling.period=20", "tiny-gpt.width=32")
    for name in ("two-bit", "part-way", "doubling", *options):
        assert name in said
    listed = command("tasks", PYTHONPATH=site, COLUMNS="300").out
    for name in ("sums", "tiny-gpt", "H = 1 at first; it doubles"):
        assert name in listed
    assert "two-bit" not in command("run", "--help", COLUMNS="300").out


def cut(trained: Path, to: Path) -> Path:
    """The run as it was before its end."""
    shutil.copytree(trained, to)
    (to / "summary.json").unlink()
    (to / "model.safetensors").unlink()
    shutil.rmtree(max((to / "checkpoints").glob("step-*")))
    return to


def test_a_resumed_run_says_what_is_missing_or_of_another_version(
    trained: Path,
    command: Command,
    tmp_path: Path,
) -> None:
    run = cut(trained, tmp_path / "run")
    missing = command("resume", run)
    assert missing.status == 2
    assert missing.err.strip() == (
        "localsgd: task sums was that of localsgd-sums 0.1.0, which is not here; install it, or "
        "give the module that has it with --use"
    )
    begun = cut(trained, tmp_path / "config")
    assert "which is not here" in command("run", "--config", begun / "run.json").err
    newer = installed(tmp_path / "newer", version="0.2.0")
    ended = command("resume", run, PYTHONPATH=newer)
    assert ended.status == 0, ended.err
    note = "task sums: localsgd-sums 0.1.0 before, localsgd-sums 0.2.0 now; results may differ"
    assert note in " ".join(ended.out.split())
    assert same(*(load_file(path / "model.safetensors") for path in (trained, run)))
    assert "0.1.0" in plugins(run)[0]


def test_records_are_read_without_the_package(
    trained: Path, command: Command, tmp_path: Path
) -> None:
    """By `show`, of one run and of a sweep, and by `export`."""
    said = command("show", trained)
    assert said.status == 0, said.err
    out = " ".join(said.out.split())
    assert "doubling (period 5), H = 4" in out
    assert "two-bit (fraction 0.05), outer part-way (share 0.9)" in out
    sweep = tmp_path / "sweep"
    for seed in (0, 1):
        shutil.copytree(trained, sweep / f"{seed}")
        settings = json.loads((trained / "run.json").read_text()) | {"seed": seed}
        (sweep / f"{seed}" / "run.json").write_text(json.dumps(settings))
    kept = {"runs": ["0", "1"], "varied": ["outer"], "baseline": {"outer": "part-way"}}
    (sweep / "sweep.json").write_text(json.dumps(kept))
    said = command("show", sweep)
    assert said.status == 0, said.err
    assert "part-way" in said.out
    table = tmp_path / "table.tex"
    said = command("export", sweep, "--latex", table, "--baseline", "method=doubling")
    assert said.status == 0, said.err
    assert "doubling & 2 &" in table.read_text()


def test_a_hint_to_go_on_is_a_whole_command(command: Command, tmp_path: Path) -> None:
    """After Ctrl-C, in `show`, and where the folder is given again."""
    run, named = tmp_path / "a run", {"PYTHONPATH": str(EXAMPLE)}
    begun = ("run", "--use", "localsgd_sums", *RUN, "--out", run)
    cut_off = command(*begun, at_step=(7, "SIGINT"), **named)
    again = f"PYTHONPATH={EXAMPLE} localsgd resume '{run}' --use localsgd_sums"
    assert (cut_off.status, cut_off.err) == (130, f"localsgd: interrupted; go on with: {again}\n")
    wide = {**named, "COLUMNS": "300"}
    assert f"go on with: {again}\n" in command("show", run, "--use", "localsgd_sums", **wide).out
    assert f"go on with it by `{again}`, or" in command(*begun, **named).err
    assert command(*shlex.split(again)[2:], "--quiet", **named).status == 0
    ended = command(*shlex.split(again)[2:], **named).err
    assert ended.endswith(f"see `{again.replace('resume', 'show')}`\n")


def test_a_folder_never_chooses_what_is_imported(
    trained: Path,
    command: Command,
    tmp_path: Path,
) -> None:
    """Neither by what it records nor by files in it."""
    run = cut(trained, tmp_path / "run")
    (run / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    settings = json.loads((run / "run.json").read_text())
    settings["plugins"] = ["task sums: evil 1.0", "compression two-bit: evil:Evil 1.0"]
    (run / "run.json").write_text(json.dumps(settings))
    for arguments in (["resume", run], ["show", run], ["run", "--config", run / "run.json"]):
        command(*arguments)
    assert not (tmp_path / "ran").exists()
    settings["plugins"] = ["task sums: \u001b[31mred 1.0"]
    (run / "run.json").write_text(json.dumps(settings))
    assert "\x1b" not in command("resume", run).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--use", "nothing.there"], "the module nothing.there is not found; install its package"),
        (["--use", "../x"], "'../x' is no module"),
        (["--use", "json"], "the module json has no LOCALSGD"),
        (["--use", "localsgd_sums", "--options", "two-bit.fracton=1"], "is of no part of this run"),
        (
            [*TWO_BIT, "two-bit.frac=1"],
            "unknown option of two-bit 'frac'; nearest: fraction",
        ),
        (
            [*TWO_BIT, "two-bit.fraction=x"],
            "option 'two-bit.fraction=x' is not understood; give a number",
        ),
        (
            [*TWO_BIT, "two-bit.fraction=0.1", "two-bit.fraction=0.2"],
            "option two-bit.fraction is given twice",
        ),
        (
            [*TWO_BIT, "two-bit.fraction=2"],
            "two-bit.fraction=2 is out of range",
        ),
        (["--options", "fraction=2"], "option 'fraction=2' is not understood; write NAME.OPTION"),
    ],
)
def test_mistakes_are_said_in_one_line(
    command: Command,
    arguments: list[str],
    said: str,
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    ended = command("run", *arguments, "--out", out, PYTHONPATH=str(EXAMPLE))
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert said in ended.err
    assert not out.exists()
