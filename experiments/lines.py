"""Records as JSON lines: those that nothing of ours can have written are refused by their file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from localsgd.basics.files import read_text
from localsgd.basics.typed_json import check_value


def whole_lines(path: Path, kind: Any) -> Iterator[Any]:
    """The values of a file's lines, each checked; a line that was cut short is passed over.

    A file that isn't there has none.
    """
    for number, line in enumerate(read_text(path).splitlines() if path.exists() else [], start=1):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        yield checked(found, kind, f"{path}:{number}")


def checked(found: Any, kind: Any, where: str) -> Any:
    """A value of JSON as it was found, if it is a `kind`, for which more fields are no harm."""
    check_value(found, kind, where, then="take the line out and run that work again")
    return found
