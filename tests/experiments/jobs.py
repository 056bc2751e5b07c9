"""Jobs that take no time, for the engine and the store."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.study import Record, Workplace
from localsgd.errors import UserError


@dataclass(frozen=True)
class Square:
    """Its record is its number squared; it counts what is carried out in the scratch folder.

    Args:
        number: to be squared.
        note: no part of the key.
        wrong: what is wrong with it: "data", "code" or "stop"; "killed" takes its process along.
    """

    number: int
    note: str = ""
    wrong: str = ""

    @property
    def key(self) -> Mapping[str, Any]:
        return {"kind": "square", "task": "numbers", "number": self.number}

    @property
    def title(self) -> str:
        return f"{self.number} squared"

    def carry_out(self, place: Workplace) -> Record:
        if self.wrong == "data":
            raise UserError("no numbers here; count some")
        if self.wrong == "code":
            raise ZeroDivisionError("by zero")
        if self.wrong == "stop":
            raise KeyboardInterrupt
        if self.wrong == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        place.scratch.mkdir(parents=True, exist_ok=True)
        with (place.scratch / "done").open("a") as file:
            file.write(f"{self.number}\n")
        return {"square": self.number**2, "seconds": 0.5}
