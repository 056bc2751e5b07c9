"""A logger that remembers what it was told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localsgd.logs import Logger


class Recorder(Logger):
    """Events in order: `("begin", settings)`, `(step, numbers)`, `("end",)`."""

    def begin(self, settings: Mapping[str, Any]) -> None:
        self.events: list[Any] = [("begin", dict(settings))]

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self.events.append((step, numbers))

    def end(self) -> None:
        self.events.append(("end",))
