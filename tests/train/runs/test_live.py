"""What is said while a run goes, and that the terminal is given back."""

from __future__ import annotations

import contextlib
import importlib.machinery
import io
import re
import sys
import types

import pytest
from rich.console import Console

from localsgd.train.runs.live import REFRESH_SECONDS, Live, rounds
from localsgd.train.runs.remaining import Pace
from tests.show.records import rows_of, small_assembly, summary_of

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def said(live: Live, file: io.StringIO) -> str:
    """Carries a run of two evaluations out and returns what was written."""
    assembly = small_assembly()
    plan = assembly.plan
    rows = rows_of(plan, [0.5, 0.9])
    live.started(assembly)
    for row in rows:
        while assembly.workers.step < row["step"]:
            assembly.workers.step += 1
            live.stepped(assembly)
        with live.pausing("evaluating"):
            live.evaluated(row)
    live.finished(summary_of(plan, rows))
    return file.getvalue()


def test_plain_lines_one_for_each_evaluation() -> None:
    file = io.StringIO()
    text = said(Live(Console(file=file), quiet=False, title="mine"), file)
    lines = text.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("mine: epoch 0.5 · step 22 · loss 2.000 · test accuracy 50.0 %")
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("syncs", "text"),
    [([1], "1 round"), ([1234], "1,234 rounds"), ([112, 28], "112 + 28 rounds")],
)
def test_rounds_of_all_levels(syncs: list[int], text: str) -> None:
    assert rounds(syncs) == text


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_says_nothing(terminal: bool) -> None:
    file = io.StringIO()
    assert said(Live(Console(file=file, force_terminal=terminal), quiet=True), file) == ""


def test_terminal_shows_all_there_is_to_know() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=160, color_system=None)
    text = said(Live(console, quiet=False, title="mine"), file)
    for fact in ("epoch 1.0 of 1", "step 44 of 44", "test 50.0 %", "evaluating …", "rounds"):
        assert fact in text
    last = text.splitlines()[-1]
    assert "mine: test accuracy 90.0 % after 44 steps" in last


@pytest.mark.parametrize("width", [20, 80])
def test_live_lines_stay_two(width: int) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None)
    live = Live(console, quiet=False, title="a rather long title of a run")
    live.started(small_assembly())
    written = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue()).strip("\r\n")
    live.close()
    lines = written.split("\n")
    assert len(lines) == 2
    assert all(len(line) <= width for line in lines)


def test_pictures_are_rare_and_losses_unread_between_them() -> None:
    clock, file = Clock(), io.StringIO()
    live = Live(Console(file=file, force_terminal=True), quiet=False, clock=clock)
    assembly = small_assembly()
    live.started(assembly)
    before = file.tell()
    assembly.workers.loss_sums = None  # type: ignore[assignment]  # to read it would be an error
    assembly.workers.loss_counts = [1]
    for _ in range(1000):
        live.stepped(assembly)
    assert file.tell() == before
    assembly.workers.loss_counts = [0]
    clock.now += REFRESH_SECONDS
    live.stepped(assembly)
    assert file.tell() > before
    live.close()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_terminal_is_given_back_after_an_error(error: type[BaseException]) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80)
    live = Live(console, quiet=False)
    with contextlib.suppress(error), live:
        live.started(small_assembly())
        with live.pausing("saving"):
            raise error
    text = file.getvalue()
    assert text.rfind(SHOW) > text.rfind(HIDE)
    assert text.endswith("\x1b[2K")  # the last live line is wiped
    live.close()  # once more does no harm
    console.print("next")
    assert file.getvalue().startswith(text)


def test_cursor_is_visible_all_the_while() -> None:
    file = io.StringIO()
    live = Live(Console(file=file, force_terminal=True), quiet=False)
    live.started(small_assembly())
    text = file.getvalue()
    assert text.rfind(SHOW) > text.rfind(HIDE)
    live.close()


def test_pace_leaves_pauses_out_of_speed_and_counts_them_in_the_time_left() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.start(100)
    assert pace.seconds_for(10) is None
    clock.now += 2
    with pace.paused():
        clock.now += 8
    pace.reached(120)
    assert pace.steps_per_second == 10.0
    assert pace.seconds_for(40) == 20.0


def test_unfinished_plan_has_dashes_for_h() -> None:
    file = io.StringIO()
    live = Live(Console(file=file, force_terminal=True, width=120), quiet=False)
    live.started(small_assembly(topology="2x2", method="hierarchical"))
    assert "H –, –" in file.getvalue()
    live.close()


def module(name: str, **contents: object) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(made).update(contents)
    return made


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_gets_a_bar_if_it_has_widgets_else_lines(
    widgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []

    class Output:
        """What a notebook draws anew in its place."""

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

        def clear_output(self, wait: bool = False) -> None: ...

        def close(self) -> None: ...

    def display(*things: object, **options: object) -> None:
        shown.extend(things)

    monkeypatch.setitem(sys.modules, "IPython", module("IPython"))
    there = module("IPython.display", display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", there)
    own = module("ipywidgets", Output=Output) if widgets else None
    monkeypatch.setitem(sys.modules, "ipywidgets", own)
    console = Console(force_jupyter=True, width=100)
    said(Live(console, quiet=False), io.StringIO())
    assert any(isinstance(thing, Output) for thing in shown) is widgets
    html = "".join(getattr(thing, "html", "") for thing in shown)
    assert (html.count("epoch 0.5 · step 22") == 1) is not widgets
