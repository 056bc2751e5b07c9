"""What is finished, one JSON line each, so that a run that is interrupted goes on.

A last line that was cut short is passed over, and its part done again. Lines of another setting
stay where they are, and are not seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.network.accuracy.setting import Setting
from experiments.lines import whole_lines

Record = dict[str, Any]


class _Line(msgspec.Struct):
    """What every record has."""

    setting: dict[str, Any]


class Store:
    """The records of a setting in a file."""

    def __init__(self, path: Path, setting: Setting) -> None:
        self._path = path
        self._setting = asdict(setting)
        lines = whole_lines(path, _Line)
        self._records = [one for one in lines if one["setting"] == self._setting]

    def all(self, **wanted: Any) -> list[Record]:
        """All records whose fields have these values, in the order in which they were made."""
        items = wanted.items()
        return [one for one in self._records if all(one.get(key) == value for key, value in items)]

    def find(self, **wanted: Any) -> Record | None:
        """The latest of them."""
        return next(iter(reversed(self.all(**wanted))), None)

    def add(self, record: Mapping[str, Any]) -> Record:
        """Keeps a record at once."""
        kept = {**record, "setting": self._setting}
        line = json.dumps(kept, separators=(",", ":"), ensure_ascii=False) + "\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists() and self._path.read_bytes()[-1:] not in (b"", b"\n"):
            line = "\n" + line
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)
        self._records.append(kept)
        return kept
