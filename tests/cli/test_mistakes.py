from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import TINY, Command

RUN = ("run", *TINY)


def refused(command: Command, says: str, *arguments: object) -> None:
    """One line on stderr, exit status 2, nothing on stdout."""
    ended = command(*arguments)
    assert ended.err.startswith("localsgd: "), ended
    assert ended.err.count("\n") == 1, ended
    assert ended.err.endswith("\n")
    assert says in ended.err
    assert (ended.status, ended.out) == (2, "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--task", "digit"], "unknown task 'digit'; nearest: digits"),
        (["--method", "lokal"], "unknown method 'lokal'; nearest: local"),
        (
            ["--model", "resnet21"],
            "unknown model 'resnet21': these networks have 6n + 2 layers; nearest: resnet20",
        ),
        (["--epochz", "3"], "Unrecognized options: --epochz, 3; nearest: --epochs"),
        (["--epochs", "many"], "--epochs 'many' is not understood; give a number"),
        (["--workers", "2.5"], "--workers '2.5' is not understood; give a whole number"),
        (
            ["--compression", "int7"],
            "unknown compression 'int7'; nearest: int8. There are bfloat16",
        ),
        (["--precision", "half"], "unknown precision 'half'; there are bfloat16, float32, float64"),
        (["--epochs", "inf"], "--epochs: give a number < 1000000000.0"),
        (["--local-steps", "0"], "--local-steps[0]: give a whole number >= 1"),
        (["--local-steps", "9" * 23], "--local-steps[0]: give a whole number <= 46116860184273879"),
        (["--fragments", str(1 << 63)], "--fragments: give a whole number <= 4611686018427387903"),
        (["--workers", "0"], "--workers: give a whole number >= 1"),
        (["--topology", "3x2"], "workers = 4, but topology 3x2 has 6"),
        (["--switch", "epoch:4"], "switch epoch:4 lies outside the run of 3 epochs (12 steps)"),
        (["--switch", "sometime"], "switch 'sometime' is not understood"),
        (["--batch", "21"], "80 training samples: too few for 4 workers x batch 21 = 84"),
        (["--train-samples", "9999"], "a class-balanced subset of 9,999 samples cannot be taken"),
        (["--device", "gpu"], "unknown device 'gpu'; use cpu, cuda or auto"),
        (["--device", "cuda:0"], "unknown device 'cuda:0'; use cpu, cuda or auto"),
        (["--init", "none.safetensors"], "none.safetensors is not there"),
        (["--inner-state", "exp_avg=reset"], "state has no 'exp_avg'; it has momentum_buffer"),
        (["--checkpoint-every", "0"], "--checkpoint-every 0 is too small; give 1 or more"),
        (["--heartbeat-seconds", "0"], "--heartbeat-seconds 0 is out of range; give more than 0"),
        (["--timeout-minutes", "-1"], "--timeout-minutes -1 is out of range"),
        (["--processes", "0"], "--processes 0 is too small; give 1 or more"),
        (["--config", "none.json"], "none.json: No such file or directory"),
    ],
)
def test_settings(command: Command, tmp_path: Path, arguments: list[str], says: str) -> None:
    refused(command, says, *RUN, "--out", tmp_path / "run", *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"task": "digits", "epochz": 3}', "unknown name 'epochz'; nearest: epochs"),
        ('{"local_steps": [2, -1]}', "local_steps[1]: give a whole number >= 1"),
        ('{"task": "digits"', "it ends too early"),
    ],
)
def test_configurations(command: Command, tmp_path: Path, text: str, says: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(text)
    refused(command, f"{config}: ", "run", "--config", config, "--out", tmp_path / "run")
    refused(command, says, "compare", f"--config={config}", "--out", tmp_path / "run")
    assert list(tmp_path.iterdir()) == [config]


def test_commands(command: Command) -> None:
    refused(command, "run, compare, sweep, resume, show, export, landscape, tasks, plan, reproduce")
    refused(command, "trian", "trian")
    refused(command, "show needs the folder of a run", "show")


def test_missing_data_without_a_network(command: Command, tmp_path: Path) -> None:
    where = ("--data-dir", tmp_path / "data", "--out", tmp_path / "run")
    for task, what in (("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")):
        ended = command("run", "--task", task, "--workers", "2", *where)
        assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
        assert "cannot be had" in ended.err
        assert what in ended.err
        assert f"into {tmp_path / 'data'}, or say with --data-dir or LOCALSGD_DATA" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_damaged_data(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(b"\x80\x02}(U")
    where = ("--data-dir", tmp_path / "data", "--out", tmp_path / "run")
    refused(command, "data_batch_1", "run", "--task", "cifar10", "--workers", "2", *where)
    assert not (tmp_path / "run").exists()


def test_pictures(command: Command, whole: Path, tmp_path: Path) -> None:
    refused(
        command, "x.doc is no picture's name; let it end in .png", "show", whole, "--figure=x.doc"
    )
    (tmp_path / "file").write_text("")
    ended = command("show", whole, "--figure", tmp_path / "file" / "x.png")
    assert (ended.status, ended.err.count("\n")) == (2, 1), ended
    assert ended.err == f"localsgd: {tmp_path / 'file'}: File exists\n"


def test_damaged_records(command: Command, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "summary.json").write_text('{"test_acc')
    for name in ("show", "resume"):
        refused(command, f"{run / 'summary.json'} is damaged", name, run)


def test_folders(command: Command, whole: Path, tmp_path: Path) -> None:
    refused(command, f"{whole} exists already; go on with it by", *RUN, "--out", whole)
    refused(command, f"{whole} has ended; see `localsgd show", "resume", whole)
    for name in ("resume", "show"):
        refused(command, f"{tmp_path} is no run's folder", name, tmp_path)
    (tmp_path / "file").write_text("")
    for words in (RUN, ("compare", *RUN[1:])):
        place = tmp_path / "file" / "run"
        refused(command, f"{place} cannot be written; give another place", *words, "--out", place)


def test_damaged_and_foreign_checkpoints(command: Command, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "summary.json").unlink()
    last = run / "checkpoints" / "step-00000012"
    worker = last / "worker-00002.pt"
    content = worker.read_bytes()
    worker.write_bytes(content[:1000] + bytes([content[1000] ^ 1]) + content[1001:])
    refused(command, f"{worker} is damaged: its checksum is another one", "resume", run)
    worker.write_bytes(content[:-1])
    refused(command, f"{worker} is damaged", "resume", run)
    worker.unlink()
    refused(command, f"{last} lacks {worker.name}", "resume", run)
    worker.write_bytes(content)
    settings = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**settings, "seed": 1}))
    refused(command, f"checkpoint {last} belongs to another run", "resume", run)
    (run / "run.json").write_text(json.dumps({**settings, "sead": 1}))
    refused(command, "run.json: unknown name 'sead'; nearest: seed", "resume", run)


def test_a_start_from_the_weights_of_another_model(command: Command, whole: Path) -> None:
    weights, out = whole / "model.safetensors", whole.parent / "other"
    refused(
        command, "holds the weights of another model", *RUN, "--model=mlp", f"--init={weights}",
        f"--out={out}",
    )  # fmt: skip
    (whole.parent / "cut").write_bytes(weights.read_bytes()[:-8])
    cut = f"--init={whole.parent / 'cut'}"
    refused(command, "is no readable safetensors file", *RUN, cut, f"--out={out}")
    assert not out.exists()
