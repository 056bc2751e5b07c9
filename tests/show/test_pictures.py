"""Pictures of runs: they are made of what was recorded, and can be read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from localsgd.results.grouping import groups
from localsgd.show import pictures, strips
from localsgd.show.canvas import look
from localsgd.show.plot_sweep import sweep
from localsgd.train.data.metric import PERPLEXITY
from localsgd.train.engine.run_folder import Folder
from tests.show.records import folder_of

CURVE = [0.3, 0.6, 0.8, 0.9, 0.95, 0.97, 0.98]


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[matplotlib.figure.Figure]:
    """The figures that were written."""
    found: list[matplotlib.figure.Figure] = []
    save = matplotlib.figure.Figure.savefig

    def keep(figure: matplotlib.figure.Figure, path: Path, **options: Any) -> None:
        found.append(figure)
        save(figure, path, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)
    return found


def twelve(path: Path) -> Iterator[Folder]:
    for number, (method, local_steps) in enumerate(
        itertools.product(["local", "post-local"], [2, 4, 8, 16])
    ):
        curve = [value - 0.005 * number for value in CURVE]
        yield folder_of(path / f"{number}", curve, method=method, local_steps=(local_steps,))
    for seed in range(3):
        yield folder_of(path / f"m{seed}", CURVE, method="mini-batch", seed=seed)
    blocks = {"method": "hierarchical", "topology": "4x2", "local_steps": (2, 2)}
    yield folder_of(path / "h", CURVE, **blocks)


def texts(figure: matplotlib.figure.Figure) -> list[tuple[str, Bbox]]:
    """What is written where; labels of ticks outside the axes are not drawn, and left out."""
    figure.draw_without_rendering()
    hidden = [
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
        for label in (tick.label1, tick.label2)
    ]
    return [
        (text.get_text(), text.get_window_extent())
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in hidden
    ]


@pytest.mark.parametrize("number", [1, 4, 12])
def test_no_two_texts_overlap_and_none_leaves_the_page(
    tmp_path: Path, saved: list[matplotlib.figure.Figure], number: int
) -> None:
    folders = list(twelve(tmp_path))[-number:]
    pictures.comparison(folders, tmp_path / "out" / "c.png")
    pictures.run(folders[-1], tmp_path / "out" / "r.png")
    for figure in saved:
        page = figure.bbox.padded(1)
        written = texts(figure)
        assert written
        for (one, here), (other, there) in itertools.combinations(written, 2):
            assert not here.overlaps(there), (one, other)
        for text, box in written:
            assert page.x0 <= box.x0, text
            assert box.x1 <= page.x1, text
    assert (tmp_path / "out" / "c.png").read_bytes()[:4] == b"\x89PNG"


def test_curves_are_the_records(tmp_path: Path, saved: list[matplotlib.figure.Figure]) -> None:
    folders = [
        folder_of(tmp_path / f"{seed}", [0.5, 0.8 + 0.1 * seed], method="mini-batch", seed=seed)
        for seed in range(2)
    ]
    pictures.comparison(folders, tmp_path / "c.png")
    epochs, sent = saved[0].axes
    np.testing.assert_allclose(epochs.lines[0].get_ydata(), [50, 85])
    np.testing.assert_allclose(epochs.lines[0].get_xdata(), [22 * 128 / 1437, 44 * 128 / 1437])
    np.testing.assert_allclose(sent.lines[0].get_xdata(), [22_000, 44_000])
    assert sent.get_xscale() == "log"
    band = epochs.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(max(band[:, 1]), 85 + 100 * 0.005**0.5)


@pytest.mark.parametrize(
    "seeds",
    [
        [[0.5, 0.93], [0.7, 0.98]],
        [[0.2, 0.97], [0.3, 0.9999]],  # mean and deviation reach 100 %
        [[0.01, 0.9], [0.4, 1.0]],  # ... and 0 %
        [[1.0, 1.0], [1.0, 1.0]],
    ],
)
def test_bands_are_whole_and_no_axis_leaves_0_to_100(
    tmp_path: Path, saved: list[matplotlib.figure.Figure], seeds: list[list[float]]
) -> None:
    folders = [
        folder_of(tmp_path / f"{index}", values, method="local", local_steps=(4,), seed=index)
        for index, values in enumerate(seeds)
    ]
    pictures.comparison(folders, tmp_path / "c.png")
    sweep(groups(folders), ["local_steps"], tmp_path / "s.png")
    for figure in saved:
        axes = figure.axes[0]
        low, high = axes.get_ylim()
        assert 0 <= low < high <= 100
        edges = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert low <= max(0.0, min(edges))
        assert min(100.0, max(edges)) <= high
        for curve in axes.lines:
            assert all(low <= value <= high for value in curve.get_ydata())


def test_outermost_level_has_a_panel_of_its_own(
    tmp_path: Path, saved: list[matplotlib.figure.Figure]
) -> None:
    settings = {"method": "hierarchical", "topology": "4x2", "local_steps": (2, 2)}
    pictures.comparison([folder_of(tmp_path / "a", [0.9], **settings)], tmp_path / "c.png")
    _, everything, outermost = saved[0].axes
    assert everything.lines[0].get_xdata() == [33_000]
    assert outermost.lines[0].get_xdata() == [11_000]


def test_syncs_of_a_run_with_a_switch(
    tmp_path: Path, saved: list[matplotlib.figure.Figure]
) -> None:
    folder = folder_of(tmp_path / "a", CURVE, local_steps=(8,), switch="step:10")
    pictures.run(folder, tmp_path / "r.png")
    gaps = saved[0].axes[3].lines[0].get_ydata()
    assert list(gaps) == [1] * 10 + [8] * 4 + [2]


def test_syncs_that_no_plan_knows_are_those_counted(
    tmp_path: Path, saved: list[matplotlib.figure.Figure]
) -> None:
    """A plan lets H start at 16; what a run made of it is in its evaluations alone."""
    folder = folder_of(tmp_path / "a", [0.5, 0.9], method="adacomm", local_steps=(16,))
    rows = folder.metrics()
    folder.forget_after(0)
    for row, counted in zip(rows, (2, 13), strict=True):
        folder.append({**row, "syncs": [counted]})
    pictures.run(folder, tmp_path / "r.png")
    np.testing.assert_allclose(saved[0].axes[3].lines[0].get_ydata(), [22 / 2, 22 / 11])


def test_a_run_cut_short_is_drawn_as_far_as_it_came(
    tmp_path: Path, saved: list[matplotlib.figure.Figure]
) -> None:
    folder = folder_of(tmp_path / "a", [0.5, 0.9], method="mini-batch", ended=False)
    pictures.run(folder, tmp_path / "r.png")
    assert len(saved[0].axes[3].lines[0].get_ydata()) == 22


def test_nothing_recorded_yet_is_an_empty_picture(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", [0.5], ended=False)
    pictures.run(folder, tmp_path / "r.png")
    pictures.comparison([folder], tmp_path / "c.png")
    assert pictures.text([folder]) == ""
    assert (tmp_path / "r.png").exists()
    assert (tmp_path / "c.png").exists()


@pytest.mark.parametrize("accuracies", [[1.0, 1.0], [0.0, 0.0], [0.5], [0.1, 1.0], [0.97, 0.97]])
def test_accuracies_at_the_ends(tmp_path: Path, accuracies: list[float]) -> None:
    folder = folder_of(tmp_path / "a", accuracies)
    pictures.comparison([folder], tmp_path / "c.png")
    pictures.run(folder, tmp_path / "r.png")
    assert pictures.text([folder])


def test_looks_differ() -> None:
    looks = [tuple(look(index).values()) for index in range(105)]
    assert len(set(looks)) == len(looks)


def test_strips_by_hand(tmp_path: Path) -> None:
    folders = [
        folder_of(tmp_path / "a", [0.0, 0.9, 0.99], method="mini-batch"),
        folder_of(tmp_path / "b", [0.9], method="local", local_steps=(44,)),
    ]
    lines = pictures.text(folders, width=72).splitlines()
    assert lines[1].startswith("mini-batch, H = 1 ")
    assert lines[1].endswith("█  99.0 %")
    assert lines[2].split()[-3:] == ["▅", "90.0", "%"]
    assert lines[3].split()[0] == "└1.0"
    assert lines[4].startswith("▁ from 0.0 %")
    assert all(len(line) <= 72 for line in lines)


@pytest.mark.parametrize("width", [40, 72, 120])
def test_strips_keep_to_their_width(tmp_path: Path, width: int) -> None:
    text = pictures.text(list(twelve(tmp_path)), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) == 10 + 3


def test_a_perplexity_that_is_no_number_is_the_worst() -> None:
    heights = [strips._height(value, PERPLEXITY) for value in (80.0, math.inf, math.nan)]
    assert heights[0] > heights[1] == heights[2]
