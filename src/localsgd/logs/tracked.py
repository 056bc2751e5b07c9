"""Loggers of services that know a run by an id, which is kept in the run's folder."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import msgspec

from localsgd.basics.typed_json import read_json
from localsgd.logs.logger import Logger, Numbers
from localsgd.train.engine.run_folder import write_whole


class _Kept(msgspec.Struct):
    """The run's id and the last step that was told; -1 before the first."""

    id: str | None
    step: int


class Tracked(Logger):
    """A logger of a service that keeps what it was told: no step is told twice.

    The run's id and the last step that was told lie in `NAME.json` in the run's folder. A resumed
    run goes on under its id.
    """

    name: str
    """Of the service."""

    @abstractmethod
    def open(self, identity: str | None, settings: Mapping[str, Any]) -> str:
        """Opens a new run, or the one with this id; returns its id."""

    @abstractmethod
    def tell(self, step: int, numbers: Numbers) -> None:
        """Tells the service."""

    def begin(self, settings: Mapping[str, Any]) -> None:
        kept = self._kept()
        self._told = kept.step
        self._identity = self.open(kept.id, settings)

    def log(self, step: int, numbers: Numbers) -> None:
        if step < self._told or (step == self._told and self._replaying):
            return
        self.tell(step, numbers)
        self._told = step
        content = json.dumps({"id": self._identity, "step": step})
        write_whole(self.path / f"{self.name}.json", content.encode() + b"\n")

    def _kept(self) -> _Kept:
        path = self.path / f"{self.name}.json"
        if not path.exists():
            return _Kept(None, -1)
        return read_json(path, _Kept, "remove it to log to a new run")
