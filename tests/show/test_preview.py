"""What a run will do, in pictures whose answers are worked out by hand."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from localsgd.rows.layout import Layout, Slot
from localsgd.show.forecast import phases
from localsgd.show.preview import draw, preview
from localsgd.show.sparklines import block, shorten, sparkline, thin
from tests.show.records import plan_of

LAYOUT = Layout((Slot("weight", (25, 10), (10, 1), 0),), 250, torch.float32)
"""Rows of 1,000 bytes."""


def previewed(width: int = 100, processes: int = 1, **settings) -> str:
    file = io.StringIO()
    plan = plan_of(**settings)
    Console(file=file, width=width).print(preview(plan, layout=LAYOUT, processes=processes))
    return file.getvalue()


def test_post_local_by_hand() -> None:
    text = previewed(epochs=4, local_steps=(4,), switch="step:10", processes=2)
    assert "8 workers, 4 in each of 2 processes" in text
    assert "44 steps of 8 x 16 = 128 samples" in text
    assert "H = 1  .1.1.1.1.1.1.1.1.1.1  " in text
    assert "H = 4  ....1....1....1....1....1....1....1....1 …" in text
    # 10 steps of H = 1, 8 rounds of 4, and the 2 steps that are left
    assert "19 syncs (43.2 % of steps)" in text
    assert "19.0 kB per worker" in text


@pytest.mark.parametrize("method", ["adacomm", "plateau", "waiting"])
def test_what_depends_on_the_run_is_no_fact(method: str) -> None:
    text = previewed(epochs=4, method=method, local_steps=(4,))
    if method == "adacomm":
        assert "at first  H = 4  ....1....1....1" in text
        assert "if H stays: 11 syncs (25.0 % of steps)  11.4 kB per worker" in text
    else:
        assert "at first  H = 1  .1.1.1" in text
        assert "if H stays: 44 syncs (100.0 % of steps)" in text
    # 44 syncs of 1,000 bytes, and 40 of what schedules see
    assert "depends on the run: at most 45.8 kB per worker, by a sync after every step" in text
    assert text.count("H = ") == 1


def test_levels_by_hand() -> None:
    text = previewed(epochs=4, method="hierarchical", topology="4x2", local_steps=(2, 2))
    assert "8 workers as 4x2 (4 blocks of 2), 8 in each of 1 process" in text
    assert "H = 2, H^b = 2  ..1..2..1..2" in text
    assert "within blocks   22 syncs" in text
    assert "between blocks  11 syncs" in text


def test_a_level_of_one_sends_nothing() -> None:
    assert "0 B per worker" in previewed(epochs=1, topology="1", method="mini-batch")


def test_learning_rate_in_words() -> None:
    text = previewed(epochs=4, lr=0.1, lr_warmup=1)
    assert "0.1 to 0.8 over 12 steps, x 0.1 at step 22 and 33" in text


def test_settings_that_change_nothing_are_named() -> None:
    text = previewed(epochs=1, method="local", switch="step:5")
    assert "no effect      switch: nothing in this run reads it" in text
    assert "no effect" not in previewed(epochs=1, method="post-local", switch="step:5")


def test_many_phases_are_left_out_in_the_middle() -> None:
    text = previewed(epochs=30, method="local-warmup", local_steps=(16,))
    assert "more phases" in text
    assert text.count("H = ") == 4


@pytest.mark.parametrize("width", [60, 80])
def test_fits(width: int) -> None:
    settings = {"method": "hierarchical-post-local", "topology": "4x2", "local_steps": (16, 64)}
    text = previewed(width, epochs=30, **settings)
    assert all(len(line) <= width for line in text.splitlines())


def test_long_rounds_are_counted() -> None:
    (phase,) = phases(plan_of(epochs=30, method="local", local_steps=(100,)))
    assert draw(phase, 60) == "...(100 steps)1...(100 steps)1...(100 steps)1...(36 steps)"
    assert draw(phase, 40) == "...(100 steps)1...(100 steps)1 …"


def test_blocks() -> None:
    assert "".join(block(value, 0, 8) for value in (-1, 0, 1, 4, 7.9, 8, 9)) == "▁▁▂▅███"
    assert block(float("nan"), 0, 1) == " "
    assert sparkline(lambda step: 10.0**step, 8, 8) == "▁▂▃▄▅▆▇█"
    assert sparkline(lambda step: 1.0, 100, 4) == "████"
    assert sparkline(lambda step: step + 1.0, 1, 40) == "█"


def test_shorten_and_thin() -> None:
    assert shorten("post-local", 10) == "post-local"
    assert shorten("post-local", 5) == "post…"
    assert thin([1, 2, 3], 3) == [1, 2, 3]
    assert thin(list(range(101)), 5) == [0, 25, 50, 75, 100]
