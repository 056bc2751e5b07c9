"""Numbers as JSON lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from localsgd.logs.logger import Logger, Numbers
from localsgd.train.engine.run_folder import add_lines, write_whole


@final
class JsonLines(Logger):
    """Writes `log.jsonl` into the run's folder: a line for each evaluation and measurement.

    {"step": 96, "epoch": 2.0, "test_loss": 0.31, ..., "sent_bytes_level_1": 1203456}
    """

    def begin(self, settings: Mapping[str, Any]) -> None:
        write_whole(self.path / "log.jsonl", b"")  # what was there before is logged again

    def log(self, step: int, numbers: Numbers) -> None:
        add_lines(self.path / "log.jsonl", [{"step": step, **numbers}])
