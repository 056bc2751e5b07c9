"""Whole evaluations: every part gives its record and its figure, and models stay as they were."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from localsgd.errors import UserError
from localsgd.landscape import Plan, compare, evaluate, read_records, write_report
from tests.landscape.cases import assert_same_state, batch_norm_net, state_of
from tests.landscape.test_interpolation import data

LOSS = nn.CrossEntropyLoss()
EVERYTHING = Plan(
    top=3,
    bottom=1,
    trace_products=6,
    density_steps=5,
    sharpness=True,
    directions=2,
    curve_points=3,
    surface_points=3,
    line_points=5,
    plane_points=3,
    noise=(2, 4),
)


def test_everything_of_three_models(tmp_path: Path) -> None:
    models = {name: batch_norm_net(seed) for seed, name in enumerate(("small", "large", "post"))}
    before = {name: state_of(net) for name, net in models.items()}
    records = compare(models, LOSS, {"train": data()["train"]}, EVERYTHING)
    for name, net in models.items():
        assert_same_state(before[name], state_of(net))
    counts: dict[str, int] = {}
    for record in records:
        counts[record["kind"]] = counts.get(record["kind"], 0) + 1
    assert counts == {
        "score": 3,
        "eigenvalues": 3,
        "trace": 3,
        "density": 3,
        "sharpness": 3,
        "gradient noise": 3,
        "step noise": 3,
        "curve": 6,
        "surface": 3,
        "interpolation": 3,
        "plane": 1,
    }
    files = write_report(records, tmp_path)
    assert len(read_records(files[0])) == len(records)
    assert sorted(path.name for path in files[1:]) == [
        "curve.png", "density.png", "eigenvalues.png", "interpolation.png", "plane.png",
        "sharpness.png", "step_noise.png", "surface.png",
    ]  # fmt: skip
    assert all(path.stat().st_size > 5000 for path in files[1:])


def test_each_curvature_and_method() -> None:
    for curvature in ("hessian", "gauss-newton", "fisher"):
        plan = Plan(top=1, curvature=curvature)
        score, found = evaluate(batch_norm_net(), LOSS, {"test": data()["test"]}, plan)
        assert (score["kind"], found["curvature"]) == ("score", curvature)
        assert found["values"][0] > 0
    plan = Plan(top=1, method="power")
    _, found = evaluate(batch_norm_net(), LOSS, {"test": data()["test"]}, plan)
    assert found["method"] == "power iteration"


def test_statistics_are_estimated_on_the_training_data() -> None:
    plan = Plan(top=0, statistics="estimated")
    kept = evaluate(batch_norm_net(), LOSS, data(), Plan(top=0))
    estimated = evaluate(batch_norm_net(), LOSS, data(), plan)
    assert [r["statistics"] for r in estimated] == ["estimated", "estimated"]
    assert all(a["loss"] != b["loss"] for a, b in zip(kept, estimated, strict=True))
    with pytest.raises(UserError, match="only test"):
        evaluate(batch_norm_net(), LOSS, {"test": data()["test"]}, plan)


def test_what_cannot_be_compared() -> None:
    with pytest.raises(UserError, match="no models"):
        compare({}, LOSS, data())
    other = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).double()
    with pytest.raises(UserError, match="not of one architecture"):
        compare({"a": batch_norm_net(), "b": other}, LOSS, data(), Plan(top=0))
    with pytest.raises(UserError, match="no curvature 'kfac'"):
        evaluate(batch_norm_net(), LOSS, data(), Plan(curvature="kfac"))


def test_matplotlib_is_imported_only_to_draw() -> None:
    code = "import sys, localsgd.landscape; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0


def test_each_model_has_the_noise_of_its_own_batch_and_workers() -> None:
    models = {name: batch_norm_net(seed) for seed, name in enumerate(("alone", "many"))}
    sizes = {"alone": (8, 1), "many": (2, 4)}
    records = compare(models, LOSS, {"train": data()["train"]}, Plan(), noise=sizes)
    steps = [record for record in records if record["kind"] == "step noise"]
    assert [(one["model"], one["local_batch"], one["workers"]) for one in steps] == [
        ("alone", 8, 1),
        ("many", 2, 4),
    ]


def test_a_plane_is_not_measured_on_test_data() -> None:
    models = {str(seed): batch_norm_net(seed) for seed in range(3)}
    with pytest.raises(UserError, match="there are only test; add it, or leave planes out"):
        compare(models, LOSS, {"test": data()["test"]}, Plan(plane_points=2))
