"""The GPU's script on a CPU, tiny: what it packs, trains and goes on with. Graphs and streams need
a GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.gpu import accuracy, data, speed
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.hosting import VARIANTS, Hosted
from localsgd.errors import UserError
from localsgd.train.data import models
from localsgd.train.data.tasks.images import ImageTask

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "part.npz"
    data.pack(data.noise(400, CPU), path, train=320, test=40)
    return path


def test_what_was_packed_comes_out(packed: Path) -> None:
    whole, part = data.noise(400, CPU), data.unpack(packed, CPU)
    assert (part.train_size, part.test_size) == (320, 40)
    assert part.labels.bincount().tolist() == [32] * 10
    known = {
        tuple(image.flatten().tolist()): int(label)
        for image, label in zip(*whole.train, strict=True)
    }
    for image, label in zip(*part.train, strict=True):
        assert known[tuple(image.flatten().tolist())] == label


def test_damaged_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.npz").write_bytes(b"no images")
    assert main(["speed", "--data", str(tmp_path / "bad.npz"), "--device", "cpu"]) == 2
    assert "is no packed data" in capsys.readouterr().err


def test_gradients_are_those_of_each_workers_own_batch(packed: Path) -> None:
    task = data.unpack(packed, CPU)
    hosted = Hosted(task, "resnet8", 3, 4, VARIANTS["fp32"])
    hosted.backward()
    for worker in range(3):
        model = models.build("resnet8", task, 0)
        x, y = hosted.feed.batch(worker)
        cross_entropy(model(x), y).backward()
        own = hosted.workers.layout.views(hosted.workers.grads[worker])
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(own[name], parameter.grad)
    batches = [hosted.feed.batch(worker)[0] for worker in range(3)]
    assert not torch.equal(batches[0], batches[1])


def test_speed_measures_what_can_run_here(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["fp32", "bf16", "bf16-graph", "bf16-graph-4"]
    lines = speed.table(data.noise(64, CPU), "resnet8", 2, 4, names, steps=1)
    assert [(line["variant"], line["workers"], line["batch"]) for line in lines] == [
        ("fp32", 2, 4),
        ("fp32", 1, 8),
        ("bf16", 2, 4),
        ("bf16", 1, 8),
    ]
    assert all(line["samples_per_second"]["median"] > 0 for line in lines)
    printed = capsys.readouterr().out.splitlines()
    assert json.loads(printed[0])["device"] == "CPU"
    assert [json.loads(line) for line in printed[1:5]] == lines


def training(task: ImageTask, path: Path, deadline: float) -> accuracy.Training:
    accuracy.ROWS["tiny"] = accuracy.Row(2, batch=20, local_steps=3, post_local=True)
    return accuracy.Training("tiny", task, "resnet8", VARIANTS["fp32"], 1.0, path, deadline)


def test_training_goes_on_where_time_was_up(packed: Path, tmp_path: Path) -> None:
    task = data.unpack(packed, CPU)
    undisturbed = training(task, tmp_path / "a.pt", time.monotonic() + 600)
    expected = undisturbed.train()
    for _ in range(20):  # a step at a time
        broken = training(task, tmp_path / "b.pt", deadline=0.0)
        try:
            found = broken.train()
            break
        except accuracy.OutOfTime:
            continue
    assert broken.steps == 8
    assert torch.equal(broken.hosted.workers.params, undisturbed.hosted.workers.params)
    assert {**found, "seconds": 0} == {**expected, "seconds": 0}
    assert asdict(broken.position) == asdict(undisturbed.position)


def test_what_is_no_state_or_result_is_refused_by_its_file(packed: Path, tmp_path: Path) -> None:
    task, path = data.unpack(packed, CPU), tmp_path / "a.pt"
    begun = training(task, path, deadline=0.0)
    with pytest.raises(accuracy.OutOfTime):
        begun.train()
    state = torch.load(path, weights_only=True)
    for damaged in (5, {}, {**state, "step": "x"}, {**state, "position": {"odd": 1}}):
        torch.save(damaged, path)
        with pytest.raises(UserError, match=r"a.pt is damaged, .*; remove it to begin this row"):
            training(task, path, deadline=0.0)
    path.write_bytes(b"x")
    with pytest.raises(UserError, match=r"a.pt is damaged"):
        training(task, path, deadline=0.0)
    results = tmp_path / "results.jsonl"
    for line in ("5", "{", "{}", '{"row": []}', "[" * 100_000):
        results.write_text(f"{line}\n")
        with pytest.raises(UserError, match=r"results.jsonl is damaged, .*; take the damaged line"):
            accuracy.rows([], lambda name, path: begun, tmp_path)
    results.write_text('{"row": "A2"}\n')
    assert accuracy.rows(["A2"], lambda name, path: begun, tmp_path) == [{"row": "A2"}]


def test_it_needs_torch_and_numpy_alone(packed: Path) -> None:
    others = ("msgspec", "tyro", "rich", "matplotlib", "safetensors", "sklearn", "scipy")
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({others!r}));"
        "from benchmarks.gpu.__main__ import main;"
        f"sys.exit(main(['speed', '--data', {str(packed)!r}, '--device', 'cpu', '--model',"
        "'resnet8', '--workers', '2', '--batch', '2', '--steps', '1', '--variants', 'fp32']))"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        timeout=100,
        cwd=ROOT,
        capture_output=True,
    )
