"""Records as JSON lines; a file is written completely or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from localsgd.basics import strict_json
from localsgd.basics.files import open_anew, read_text
from localsgd.errors import UserError


def write_records(path: str | Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """Write records as JSON lines through a file beside it; numbers that aren't finite are null."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    lines = map(strict_json.dumps, records)
    content = "".join(f"{line}\n" for line in lines).encode()
    with open_anew(beside) as file:
        file.write(content)
    beside.replace(path)
    return path


def read_records(path: str | Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines."""
    records = []
    try:
        text = read_text(Path(path))
    except OSError as error:
        raise UserError(f"cannot read records from {path}: {error.strerror}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", error)
            raise UserError(f"line {number} of {path} is not JSON: {reason}") from error
        if not isinstance(record, dict) or "kind" not in record:
            raise UserError(f"line {number} of {path} is no record: it has no 'kind'")
        records.append(record)
    return records
