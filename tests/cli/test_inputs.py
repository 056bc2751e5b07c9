"""Values, files and folders that nobody should give: one line, and nothing half done."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from localsgd.cli import measuring, showing, training
from localsgd.cli.options import LandscapeCommand, ResumeCommand, ShowCommand
from localsgd.errors import UserError
from localsgd.train.config.run import Run
from tests.cli.conftest import Command, Ended
from tests.cli.test_mistakes import refused

SMALL = ("run", "--task=digits", "--model=mlp-4", "--train-samples=80", "--batch=5", "--epochs=1",
         "--workers=4", "--quiet")  # fmt: skip


EMPTIED = (
    "task", "model", "topology", "local_steps", "lr", "batch", "epochs", "lr_batch", "momentum",
    "optimizer", "seed", "partition", "inner_state", "device",
)  # fmt: skip


def strict(path: Path) -> list[Any]:
    """The JSON values of a file, whose reader takes neither NaN nor infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{path} has {word}")

    text = path.read_text()
    parts = text.splitlines() if path.suffix == ".jsonl" else [text]
    return [json.loads(part, parse_constant=refuse) for part in parts]


def one_line(ended: Ended, status: int) -> str:
    assert (ended.status, ended.out) == (status, ""), ended
    assert ended.err.startswith("localsgd: "), ended
    assert ended.err.count("\n") == 1, ended
    return ended.err


@pytest.fixture
def cut(whole: Path, tmp_path: Path) -> Path:
    """The folder of a run that was cut off, with a checkpoint."""
    folder = Path(shutil.copytree(whole, tmp_path / "cut"))
    (folder / "summary.json").unlink()
    shutil.rmtree(max((folder / "checkpoints").iterdir()))
    return folder


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("how", [("--lr=1e8",), ("--lr=9e8", "--compression=ef-sign")], ids=str)
def test_a_run_that_diverges_says_so(command: Command, tmp_path: Path, how: tuple) -> None:
    out = tmp_path / "out"
    ended = command(*SMALL, *how, "--watch=drift", f"--out={out}")
    said = one_line(ended, 4)
    for path in (*out.rglob("*.json"), *out.rglob("*.jsonl")):
        strict(path)
    if "--lr=1e8" not in how:
        assert "not finite in" in said  # what is compressed must be a number: it ends there
        return
    assert f"diverged: weights or losses are no finite numbers any more in {out};" in said
    assert strict(out / "summary.json")[0]["diverged"] is True
    shown = command("show", out)
    assert (shown.status, shown.err) == (0, "")
    assert "diverged" in shown.out


def test_a_run_that_does_not_diverge_says_so_too(whole: Path) -> None:
    assert strict(whole / "summary.json")[0]["diverged"] is False


def test_a_comparison_with_a_run_that_diverges(command: Command, tmp_path: Path) -> None:
    out, words = tmp_path / "out", ("compare", *SMALL[1:], "--methods", "local", "--lr=1e8")
    for _ in range(2):  # the second time it has ended
        assert f"in {out / 'local'};" in one_line(command(*words, f"--out={out}"), 4)
        assert (out / "comparison.png").is_file()


@pytest.mark.parametrize("seed", ["9999999999999999999999", "-9223372036854775809"])
def test_seeds_beyond_64_bits(command: Command, tmp_path: Path, seed: str) -> None:
    refused(
        command,
        "--seed: give a whole number",
        *SMALL,
        f"--seed={seed}",
        f"--out={tmp_path / 'out'}",
    )
    words = ("compare", *SMALL[1:], f"--out={tmp_path / 'out'}")
    refused(command, "--seed: give a whole number", *words, "--seeds", seed)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [None, "", [], {}], ids=repr)
def test_empty_values_in_a_run_to_resume(cut: Path, value: object) -> None:
    path = cut / "run.json"
    before = path.read_text()
    for name in EMPTIED:
        if (name, value) == ("inner_state", ""):
            continue  # what it is
        change(path, **{name: value})
        with pytest.raises(UserError, match=r"^[^\n]+$"):
            training.resume(ResumeCommand(cut))
        path.write_text(before)


def test_nulls_in_a_configuration_are_what_was_left_open(command: Command, tmp_path: Path) -> None:
    """Or refused in one line: none of them ends in anything else."""
    config = tmp_path / "config.json"
    base = {"task": "digits", "model": "mlp-4", "train_samples": 80, "workers": 4, "batch": 5}
    for name in Run.__struct_fields__:
        config.write_text(json.dumps(base | {"epochs": 0.25, name: None}))
        if name in base or Run.__struct_defaults__[Run.__struct_fields__.index(name)] is None:
            continue  # the same as leaving it out
        refused(command, "", "run", f"--config={config}", "--quiet", f"--out={tmp_path / 'out'}")


def test_files_without_an_end(command: Command, cut: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    out = f"--out={tmp_path / 'out'}"
    for place in ("/dev/zero", pipe):
        refused(command, "is a pipe or a device", *SMALL, f"--partition=column:{place}", out)
        refused(command, "is a pipe or a device", *SMALL, f"--init={place}", out)
    refused(command, "more than 1,048,576 bytes", "run", "--config=/dev/zero", out)
    for name in ("worker-00001.pt", "common.json"):
        [place] = cut.glob(f"checkpoints/*/{name}")
        kept = place.read_bytes()
        place.unlink()
        os.mkfifo(place)
        refused(command, "is a pipe or a device", "resume", cut, "--quiet")
        place.unlink()
        place.write_bytes(kept)
    os.replace(pipe, cut / "metrics.jsonl")
    for words in (("resume", cut, "--quiet"), ("show", cut)):
        refused(command, "is a pipe or a device", *words)


def test_a_column_of_odd_numbers(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "owners"
    for line, says in ("1_0", "is no whole number"), ("1e3", "is no whole"), ("9" * 30, "64 bits"):
        path.write_text("\n".join(["0", "1", "2", "3"] * 19 + ["0", "1", "2", line]))
        words = (*SMALL, f"--partition=column:{path}", f"--out={tmp_path / 'out'}")
        refused(command, says, *words)


def test_damaged_folders(whole: Path, tmp_path: Path) -> None:
    """`show` and `landscape` of a folder of which a file is damaged end, or say so in one line."""
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    damages = (b"", b"null", b"[]", b"{}", b"{" * 100_000, b"\xff\xfe", b'{"a": 1e999}')
    for name in ("run.json", "environment.json", "summary.json", "metrics.jsonl"):
        before = (folder / name).read_bytes()
        for content in damages:
            (folder / name).write_bytes(content)
            for folders in ((folder,), (folder, whole)):
                with suppress(UserError):
                    assert showing.show(ShowCommand(folders)) == 0
        (folder / name).write_bytes(before)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    for damaged in (b"", content[:100], b"\xff" * 8 + content[8:]):
        weights.write_bytes(damaged)
        with pytest.raises(UserError, match="is no readable safetensors file"):
            measuring.landscape(LandscapeCommand((folder,), what=("line",), quiet=True))


def test_a_folder_that_goes_away_or_cannot_be_written(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "out", "/proc/out", "/dev/null"):
        refused(command, "", *SMALL, f"--out={place}")


def test_a_warm_up_of_h_that_outlasts_the_run(command: Command, tmp_path: Path) -> None:
    words = (*SMALL, "--method=local-warmup", f"--out={tmp_path / 'out'}")
    refused(command, "step_warmup of 8 epochs (H epochs, if not given) outlasts", *words)
    refused(command, "step_warmup of 2 epochs outlasts", *words, "--step-warmup=2")
    assert command(*words, "--step-warmup=1").status == 0


def test_signs_of_the_paper(command: Command, tmp_path: Path) -> None:
    """Algorithm 3: local steps along signs, and a scale over the row where asked for."""
    out = tmp_path / "out"
    ended = command(*SMALL, "--method=sign", "--sign-scales=row", f"--out={out}")
    assert (ended.status, ended.err) == (0, "")
    [run] = strict(out / "run.json")
    assert (run["optimizer"], run["compression"], run["sign_scales"]) == ("sign", "sign", "row")
    assert (run["lr_scaling"], run["lr"]) == ("none", 0.01)
    refused(command, "scales = 12 is not", *SMALL, "--compression=sign", "--sign-scales=12")


def test_a_run_knows_its_code_and_machine(whole: Path) -> None:
    [found] = strict(whole / "environment.json")
    assert found["threads"] == 1
    assert {"commit", "dirty", "processor", "instruction_sets", "torch_commit"} <= found.keys()
    if found["commit"] is not None:
        assert re.fullmatch(r"[0-9a-f]{40}", found["commit"])
        assert found["dirty"] in (True, False)


def test_every_number_is_there_at_40_columns(command: Command, whole: Path) -> None:
    def numbers(columns: int, *words: object) -> Counter[str]:
        ended = command(*words, COLUMNS=str(columns))
        assert (ended.status, ended.err) == (0, "")
        return Counter(re.findall(r"\d+(?:[.,]\d+)*", ended.out.replace(str(whole), "")))

    plan = ("plan", "--topology=4", "--rates=1e9", "--step-seconds=0.1", "--scalars=1e6")
    for words in (("show", whole), plan):
        assert not numbers(200, *words) - numbers(40, *words)


WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"msgspec", "tyro", "rich", "matplotlib", "safetensors"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
import localsgd
from localsgd.cli import main
raise SystemExit(main(["--help"]))
"""


def test_without_the_extra() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "pip install 'localsgd[cli]'" in done.stderr
