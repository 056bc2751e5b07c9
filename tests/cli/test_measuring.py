"""`localsgd landscape` on a tiny run on digits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from localsgd.basics.seeds import generator_for
from localsgd.cli import main
from localsgd.cli.measuring import load
from localsgd.landscape import Hessian, Objective, estimated, in_batches, kept, read_records
from localsgd.train.data import tasks
from localsgd.train.data.sampling.subset import batches_of
from localsgd.train.engine.run_folder import Folder
from tests.cli.conftest import TINY, Command
from tests.cli.test_mistakes import refused

SMALL = ("--directions", 2, "--points", 5, "--top", 3, "--quiet")


@pytest.fixture(scope="module")
def other(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run from another seed, watched while it trained, beside a copy of `whole`."""
    folder = tmp_path_factory.mktemp("pair") / "other"
    watch = "lambda_max:1:80,noise:3:80,drift"
    ended = command("run", *TINY, "--seed", 1, "--watch", watch, "--out", folder, "--quiet")
    assert (ended.status, ended.err) == (0, "")
    return folder


def test_one_run(command: Command, whole: Path, tmp_path: Path) -> None:
    what = ("eigenvalues", "trace", "density", "sharpness", "curves", "surface", "noise", "watched")
    ended = command("landscape", whole, "--samples", 80, "--what", *what, *SMALL, "--out", tmp_path)
    assert (ended.status, ended.out, ended.err) == (0, "", "")
    records = read_records(tmp_path / "landscape.jsonl")
    count = dict.fromkeys((record["kind"] for record in records), 0)
    for record in records:
        count[record["kind"]] += 1
    once = ("score", "eigenvalues", "trace", "density", "sharpness", "gradient noise", "step noise")
    assert count == {**dict.fromkeys(once, 2), "curve": 4, "surface": 2, "step noise": 1}
    assert [one["data"] for one in records if one["kind"] == "step noise"] == ["train"]
    figures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert figures == [
        "curve.png", "density.png", "eigenvalues.png", "sharpness.png", "step_noise.png",
        "surface.png",
    ]  # fmt: skip


def test_the_eigenvalue_is_that_of_the_saved_model(
    command: Command, whole: Path, tmp_path: Path
) -> None:
    """Over all samples, in the run's own folder: an eigenvalue of an operator built by hand."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    arguments = ("--samples", 0, "--what", "eigenvalues", "--data", "test", "--top", 1)
    ended = command("landscape", run, *arguments)
    assert ended.status == 0, ended
    assert f"Records: {run / 'landscape' / 'landscape.jsonl'}" in ended.out
    score, found = read_records(run / "landscape" / "landscape.jsonl")
    task = tasks.load("digits")
    data = in_batches(*task.test_batch(torch.arange(360)), 360)
    objective = Objective(load(Folder.open(run), task, "cpu"), task.loss, data)
    summary = json.loads((run / "summary.json").read_text())
    assert score["accuracy"] == pytest.approx(summary["test_accuracy"])
    assert score["loss"] == pytest.approx(summary["test_loss"], rel=1e-5)
    hessian = Hessian(objective)
    v = torch.randn(1, objective.n)
    for _ in range(500):
        v = hessian.apply(v)
        v /= v.norm()
    assert found["values"][0] == pytest.approx(float(v @ hessian.apply(v).T), rel=1e-3)


def test_two_runs_and_the_line_between_them(
    command: Command, whole: Path, other: Path, tmp_path: Path
) -> None:
    beside = other.parent / "whole"
    shutil.copytree(whole, beside)
    ended = command(
        "landscape", beside, other, "--samples", 80, "--what", "line", "watched", *SMALL
    )
    assert (ended.status, ended.err) == (0, "")
    records = read_records(other.parent / "landscape" / "landscape.jsonl")
    [line] = [record for record in records if record["kind"] == "interpolation"]
    assert line["pair"] == "whole to other"
    assert {-0.5, 0.0, 1.0, 1.5} <= set(line["positions"])
    scores = {(r["model"], r["data"]): r["loss"] for r in records if r["kind"] == "score"}
    for name, end in (("whole", 0.0), ("other", 1.0)):
        place = line["positions"].index(end)
        for data in ("train", "test"):
            found = line["data"][data]["loss"][place]
            assert found == pytest.approx(scores[name, data], rel=1e-5)
    assert set(line["barrier"]) == {"train", "test"}
    assert {r["model"] for r in records if r["kind"] == "largest eigenvalue"} == {"other"}
    assert sorted(path.name for path in (other.parent / "landscape").glob("*.png")) == [
        "drift.png", "interpolation.png", "largest_eigenvalue.png", "step_noise.png",
    ]  # fmt: skip


def test_statistics_are_estimated_on_images_as_training_reads_them(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Augmented, with the same draws every time, on the samples that are measured on plain."""
    digits = tasks.load("digits").subset(80)
    real = digits.train_batch

    def noisy(indices: Tensor, draws: torch.Generator | None) -> tuple[Tensor, Tensor]:
        x, y = real(indices, None)
        return (x if draws is None else x + torch.rand(x.shape, generator=draws)), y

    object.__setattr__(digits, "train_batch", noisy)
    object.__setattr__(digits, "subset", lambda _: digits)
    monkeypatch.setattr(tasks, "load", lambda *_, **__: digits)
    arguments = ["landscape", str(whole), "--samples", "16", "--what", "line", "--data", "train"]
    found = {}
    for statistics in ("kept", "estimated", "estimated"):
        out = tmp_path / f"{statistics}-{len(found)}"
        assert main([*arguments, "--statistics", statistics, "--out", str(out)]) == 0
        (score,) = read_records(out / "landscape.jsonl")
        found.setdefault(statistics, []).append(score["loss"])
        told = "measured on 16 training samples, read as training reads them"
        assert (told in capsys.readouterr().out) == (statistics == "estimated")
    net = load(Folder.open(whole), digits, "cpu")
    plain = batches_of(digits, 16, names=("train",))["train"]
    augmented = batches_of(
        digits, 16, names=("train",), draws=generator_for(0, "landscape statistics")
    )["train"]
    assert not torch.equal(plain[0][0], augmented[0][0])
    assert torch.equal(plain[0][1], augmented[0][1])
    for statistics in (kept(net), estimated(net, augmented)):
        wanted = Objective(net, digits.loss, plain, statistics=statistics).score().loss
        assert set(found[statistics.kind]) == {wanted}
    assert found["kept"] != found["estimated"][:1]


def test_mistakes(command: Command, whole: Path, other: Path, tmp_path: Path) -> None:
    def wrong(says: str, *arguments: object) -> None:
        refused(command, says, "landscape", *arguments)

    def changed(name: str, **settings: object) -> Path:
        run = tmp_path / name
        shutil.copytree(whole, run)
        config = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**config, **settings}))
        return run

    wrong("landscape needs the folder of a run")
    wrong(f"{tmp_path} is no run's folder", tmp_path)
    wrong("the same run is given twice", whole, whole)
    wrong("give a folder with --out", whole, other)
    wrong("--samples -1 is too small", whole, "--samples", -1)
    wider = changed("wider", model="small-cnn-8")
    message = f"{whole.name} has model small-cnn-4 and wider model small-cnn-8"
    wrong(message, whole, wider, "--out", tmp_path / "out")
    wrong("holds the weights of another model", wider)
    more = changed("more", train_samples=90)
    wrong("has train_samples 80 and more train_samples 90", whole, more, "--out", tmp_path / "out")
    lost = changed("lost")
    (lost / "model.safetensors").unlink()
    wrong("the file is gone from its folder", lost)
    (lost / "summary.json").unlink()
    wrong(f"finish it by `localsgd resume {lost}`", lost)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_measured_or_kept_is_refused_at_once(
    command: Command, whole: Path, tmp_path: Path
) -> None:
    refused(
        command, "power iteration finds no smallest", "landscape", whole, "--method=power",
        "--bottom=2", "--out", tmp_path / "out",
    )  # fmt: skip
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "out"
    refused(command, f"{out} cannot be written; give another", "landscape", whole, "--out", out)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_noise_is_that_of_batches_of_all_samples(
    command: Command, whole: Path, tmp_path: Path
) -> None:
    """K B = 20 of 80, as for `--watch`, though but 16 of them are measured on."""
    what = ("--what", "noise", "--data", "train", "--samples", 16)
    assert command("landscape", whole, *what, "--out", tmp_path, "--quiet").status == 0
    _, measured, step = read_records(tmp_path / "landscape.jsonl")
    assert step["averaged"] == pytest.approx(60 / 79 / 20 * measured["centred"])


def test_weights_in_float64_are_measured_as_they_are(command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    exact = ("--precision", "float64", "--out", run, "--quiet")
    assert command("run", *TINY, *exact).status == 0
    saved = load_file(run / "model.safetensors")
    found = load(Folder.open(run), tasks.load("digits"), "cpu").state_dict()
    for name, weights in saved.items():
        assert torch.equal(found[name], weights), name
    assert any(not torch.equal(one.float().double(), one) for one in saved.values())


def test_runs_of_other_precision_are_refused(command: Command, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert command("run", *TINY, "--precision", "float64", "--out", run, "--quiet").status == 0
    says = f"has precision float32 and {run.name} precision float64; give runs that have the same"
    refused(command, says, "landscape", whole, run, "--out", tmp_path / "out")
