"""Shows a run's progress: two live lines on a terminal or in a notebook, else a few plain ones."""

from __future__ import annotations

import atexit
import importlib.util
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import rich.live
from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from localsgd.basics.units import count, duration, plural, size
from localsgd.train.data.metric import metric_of
from localsgd.train.engine.assembly import Assembly
from localsgd.train.engine.observer import Observer
from localsgd.train.runs.remaining import Pace

REFRESH_SECONDS = 0.25
"""Least time between two pictures on a terminal."""


class Live(Observer):
    """An `Observer` that shows the run's progress on `console`.

    A step costs a look at the clock; the losses, which may lie on a device, are read at most four
    times a second. The terminal is left as it was when the run ends, at `close`, and when the
    interpreter exits, however it came to that; it can be used as a context too.

    Args:
        console: a terminal gets live lines, and so does a notebook that has ipywidgets; a file or a
            pipe gets a line for each evaluation.
        quiet: print nothing, as in all processes but one.
        title: of the run, in front of every line.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        console: Console,
        *,
        quiet: bool,
        title: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._title = title
        self._clock = clock
        self._loud = not quiet
        self._drawn = not quiet and _draws(console)
        self._live: rich.live.Live | None = None
        self._next = float("inf")
        self._pace = Pace(clock)
        self._doing = ""
        self._row: dict[str, Any] = {}

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def started(self, assembly: Assembly) -> None:
        self._pace.start(assembly.workers.step)
        if not self._drawn:
            return
        self.close()
        self._live = rich.live.Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),  # what goes to a file must not come here
            vertical_overflow="crop",
        )
        self._live.start()
        if not self._console.is_jupyter:
            self._console.show_cursor(True)  # a process that is killed can't bring it back
        atexit.register(self.close)
        self._assembly = assembly
        self._draw()

    def stepped(self, assembly: Assembly) -> None:
        if self._clock() >= self._next:
            self._draw()

    @contextmanager
    def pausing(self, what: str) -> Generator[None]:
        """Shows `what` during a pause, which does not count in samples per second."""
        self._doing = what
        self._draw()
        try:
            with self._pace.paused():
                yield
        finally:
            self._doing = ""

    def evaluated(self, row: dict[str, Any]) -> None:
        self._row = row
        if self._live is not None:
            self._draw()
        elif self._loud:
            self._say(evaluation_line(row))

    def finished(self, summary: dict[str, Any]) -> None:
        drawn = self._live is not None
        self.close()
        if drawn:
            self._say(summary_line(summary))

    def close(self) -> None:
        """Ends the live lines; it may be called again."""
        live, self._live, self._next = self._live, None, float("inf")
        if live is not None:
            live.stop()
            atexit.unregister(self.close)

    def _say(self, line: str) -> None:
        title = f"{self._title}: " if self._title else ""
        self._console.print(Text(title + line), soft_wrap=True)

    def _draw(self) -> None:
        if self._live is None:
            return
        self._live.update(self._picture(), refresh=True)
        self._next = self._clock() + REFRESH_SECONDS

    def _picture(self) -> Group:
        assembly = self._assembly
        step, steps = assembly.workers.step, assembly.plan.steps
        self._pace.reached(step)
        head = Table.grid(padding=(0, 2))
        for _ in range(5):
            head.add_column(no_wrap=True, overflow="ellipsis")
        head.add_row(
            Text(self._title, style="bold"),
            ProgressBar(total=steps, completed=step, width=20),
            Text(f"epoch {assembly.epoch:.1f} of {assembly.run.epochs:g}"),
            Text(f"step {count(step)} of {count(steps)}"),
            Text(self._time_left(steps - step), style="bold"),
        )
        facts = " · ".join(fact for fact in self._facts(assembly) if fact)
        return Group(head, Text(f"  {facts}", no_wrap=True, overflow="ellipsis"))

    def _time_left(self, steps: int) -> str:
        seconds = self._pace.seconds_for(steps)
        return "" if seconds is None else f"{duration(seconds)} left"

    def _facts(self, assembly: Assembly) -> Iterator[str]:
        yield f"{self._doing} …" if self._doing else ""
        loss = _running_loss(assembly)
        loss = self._row.get("train_loss") if loss is None else loss
        yield "" if loss is None else f"loss {loss:.3f}"
        if self._row:
            metric = metric_of(self._row)
            yield f"test {metric.words(self._row[metric.key], 1)}"
        yield "H " + ", ".join(str(length or "–") for length in assembly.position.lengths)
        yield rounds(assembly.syncs)
        yield f"{size(assembly.ledger.bytes)} sent per member"
        rate = self._pace.steps_per_second
        yield "" if rate is None else f"{count(rate * assembly.plan.batch)} samples/s"


def _draws(console: Console) -> bool:
    """Whether what was printed can be drawn anew."""
    if console.is_jupyter:  # rich's live lines are a widget there
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal and not console.is_dumb_terminal


def _running_loss(assembly: Assembly) -> float | None:
    """Mean training loss since the last evaluation, of the workers hosted here."""
    workers = assembly.workers
    count = sum(workers.loss_counts)
    if not count:
        return None
    return float(workers.loss_sums.sum()) / count


def rounds(syncs: list[int]) -> str:
    """Rounds of the levels, innermost first: `112 + 28 rounds`."""
    return " + ".join([*map(count, syncs[:-1]), plural(syncs[-1], "round")])


def evaluation_line(row: dict[str, Any]) -> str:
    """An evaluation in one line."""
    place = f"epoch {row['epoch']:.1f} · step {count(row['step'])} · loss {row['train_loss']:.3f}"
    return f"{place} · {_score(row)} · {_costs(row)}"


def summary_line(summary: dict[str, Any]) -> str:
    """The results in one line."""
    return f"{_score(summary)} after {plural(summary['steps'], 'step')} · {_costs(summary)}"


def _score(row: dict[str, Any]) -> str:
    metric = metric_of(row)
    return f"test {metric.name} {metric.words(row[metric.key], 1)}"


def _costs(row: dict[str, Any]) -> str:
    sent = sum(entry["bytes"] for entry in row["ledger"])
    return f"{rounds(row['syncs'])} · {size(sent)} sent per member · {duration(row['seconds'])}"
