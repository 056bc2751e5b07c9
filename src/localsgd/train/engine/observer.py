"""The seam to those who watch a run: live lines, loggers, heartbeats."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from localsgd.train.engine.assembly import Assembly


class Observer:
    """An observer of a run. Every process calls it; these methods do nothing.

    What it sees it must not change. It is called between steps, so what takes long in it slows the
    run down, but for `pausing`, whose time is not that of training.
    """

    def started(self, assembly: Assembly) -> None:
        """Before the first step, or the first one after resuming."""

    def stepped(self, assembly: Assembly) -> None:
        """After every step, once it has been averaged if that was due."""

    @contextmanager
    def pausing(self, what: str) -> Generator[None]:
        """A context for something that is no local step: evaluating, saving, measuring."""
        yield

    def evaluated(self, row: dict[str, Any]) -> None:
        """After an evaluation, with its line of `metrics.jsonl`."""

    def measured(self, records: Sequence[Mapping[str, Any]]) -> None:
        """After a measurement of `--watch`, with its lines of `watched.jsonl`."""

    def finished(self, summary: dict[str, Any]) -> None:
        """At the end of the run, with its `summary.json`. A run that is cut off has none."""


class Observers(Observer):
    """Several observers as one; each is called in turn.

    Args:
        observers: in the order in which they are called.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def started(self, assembly: Assembly) -> None:
        for observer in self._observers:
            observer.started(assembly)

    def stepped(self, assembly: Assembly) -> None:
        for observer in self._observers:
            observer.stepped(assembly)

    @contextmanager
    def pausing(self, what: str) -> Generator[None]:
        with ExitStack() as held:
            for observer in self._observers:
                held.enter_context(observer.pausing(what))
            yield

    def evaluated(self, row: dict[str, Any]) -> None:
        for observer in self._observers:
            observer.evaluated(row)

    def measured(self, records: Sequence[Mapping[str, Any]]) -> None:
        for observer in self._observers:
            observer.measured(records)

    def finished(self, summary: dict[str, Any]) -> None:
        for observer in self._observers:
            observer.finished(summary)
