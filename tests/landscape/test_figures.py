"""Figures from records alone: what is drawn is what the records say."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from localsgd.landscape.figures import FIGURES, draw

HISTORY = [
    {"kind": "largest eigenvalue", "epoch": e, "largest": 9.0 / e, "data": d, "model": m}
    for m in ("H = 1", "H = 16")
    for d in ("train", "test")
    for e in (2, 1, 3)
]
DRIFT = [
    {"kind": "drift", "step": s, "to_mean": [1.0, 3.0], "between": 1.0, "updates": [2.0, 2.0],
     "mean_update": 1.0, "cosine": None if s == 0 else 0.5, "alignment": 0.7,
     "between_rounds": None}
    for s in (0, 4, 8)
]  # fmt: skip
SURFACE = {"kind": "surface", "first": [0, 1], "second": [0, 1], "loss": [[1.0, None], [2.0, 9.0]]}


def lines(kind: str, records: list[dict]) -> list:
    figure = FIGURES[kind](records)
    return [
        [line for line in axes.get_lines() if len(line.get_xdata()) > 2] for axes in figure.axes
    ]


def test_history_is_sorted_by_epoch_with_a_panel_a_data_set() -> None:
    panels = lines("largest eigenvalue", HISTORY)
    assert [len(panel) for panel in panels] == [2, 2]
    assert list(panels[0][0].get_xdata()) == [1, 2, 3]
    assert list(panels[0][0].get_ydata()) == pytest.approx([9, 4.5, 3])


def test_drift_shows_means_and_gaps() -> None:
    distances, cosines = lines("drift", DRIFT)
    assert list(distances[0].get_ydata()) == [2, 2, 2]
    first, *rest = cosines[0].get_ydata()
    assert first != first  # a gap
    assert rest == [0.5, 0.5]


def test_a_surface_with_a_gap_and_a_flat_one(tmp_path: Path) -> None:
    flat = {**SURFACE, "loss": [[0.0, 0.0], [0.0, 0.0]]}
    assert [p.name for p in draw([SURFACE, flat], tmp_path)] == ["surface.png"]


def test_kinds_without_a_figure_are_passed_over(tmp_path: Path) -> None:
    assert draw([{"kind": "trace", "value": 1.0}], tmp_path) == []


def test_other_formats(tmp_path: Path) -> None:
    (path,) = draw(HISTORY, tmp_path, ending="svg")
    assert path.read_text().startswith("<?xml")


@pytest.mark.parametrize("name", ["$\\frac$", "a $ b $ c", "x\x1b]0;P\x07", "[/x]"])
def test_names_are_no_formulas(tmp_path: Path, name: str) -> None:
    """A folder of that name, as a label and as a title."""
    drawn = [{**record, "model": name, "data": name} for record in (*HISTORY, *DRIFT)]
    assert [path.name for path in draw(drawn, tmp_path, ending="svg")] == [
        "largest_eigenvalue.svg",
        "drift.svg",
    ]
    ElementTree.parse(tmp_path / "largest_eigenvalue.svg")


def test_nothing_is_drawn_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    for name in ("drift.png", ".drift.png"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    draw(DRIFT, tmp_path)
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "drift.png").read_bytes().startswith(b"\x89PNG")


def test_drift_of_a_run_that_has_diverged_is_a_gap(tmp_path: Path) -> None:
    drawn = [*DRIFT, {**DRIFT[0], "step": 12, "to_mean": [None, 1.0], "updates": [None, None]}]
    assert draw(drawn, tmp_path) == [tmp_path / "drift.png"]


def test_a_surface_without_a_finite_loss_says_so(tmp_path: Path) -> None:
    nothing = {**SURFACE, "loss": [[None, None], [None, None]]}
    assert [p.name for p in draw([SURFACE, nothing], tmp_path)] == ["surface.png"]
    *_, axes = FIGURES["surface"]([nothing]).axes
    assert [text.get_text() for text in axes.texts] == ["no finite loss"]


@pytest.mark.parametrize("gap", [0, 2])
def test_a_line_with_a_gap_is_drawn_but_for_it(gap: int) -> None:
    accuracy: list[float | None] = [0.9, 0.8, 0.7]
    accuracy[gap] = None
    values = {"loss": [1.0, 2.0, 3.0], "accuracy": accuracy}
    record = {"kind": "interpolation", "positions": [0, 0.5, 1], "data": {"train": values}}
    _, accuracies = lines("interpolation", [record])
    (line,) = accuracies
    drawn = line.get_ydata()
    assert [value for value in drawn if value == value] == pytest.approx(
        [100 * value for value in accuracy if value is not None]
    )
    assert drawn[gap] != drawn[gap]


def test_eigenvalues_say_of_which_matrix() -> None:
    record = {"kind": "eigenvalues", "values": [2.0, 1.0, 0.5], "residuals": [0.0] * 3}
    for curvature, name in (("hessian", "Hessian"), ("fisher", "Fisher matrix")):
        (axes,) = FIGURES["eigenvalues"]([{**record, "curvature": curvature}]).axes
        assert axes.get_ylabel() == f"eigenvalue of the {name}"
