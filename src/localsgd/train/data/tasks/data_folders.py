"""Finds data on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from localsgd.basics.files import expanded

VARIABLE = "LOCALSGD_DATA"


def data_folders(data_dir: Path | None) -> tuple[Path, ...]:
    """Folders to look in, the nearest first: `data_dir`, $LOCALSGD_DATA, ~/.cache/localsgd."""
    named = os.environ.get(VARIABLE)
    asked = [data_dir, Path(named) if named else None, Path.home() / ".cache" / "localsgd"]
    return tuple(expanded(p) for p in asked if p is not None)


def advice(what: str, data_dir: Path | None) -> str:
    """The end of a message on missing data, which says what to put where."""
    return (
        f"put {what} into {data_folders(data_dir)[0]}, or say with --data-dir or {VARIABLE} "
        f"where it is"
    )
