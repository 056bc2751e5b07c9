"""An observer for runs without output."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from localsgd.train.engine.assembly import Assembly


class Quiet:
    """An observer that does nothing."""

    def started(self, assembly: Assembly) -> None: ...

    def stepped(self, assembly: Assembly) -> None: ...

    @contextmanager
    def pausing(self, what: str) -> Generator[None]:
        yield

    def evaluated(self, row: dict[str, Any]) -> None: ...

    def finished(self, summary: dict[str, Any]) -> None: ...
