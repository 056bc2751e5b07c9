"""Runs as a data frame of pandas or polars."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from localsgd.errors import UserError
from localsgd.results.rows import columns, rows

Library = Literal["pandas", "polars"]


def frame(paths: Iterable[Path | str] | Path | str, library: Library | None = None) -> Any:
    """The runs in `paths` as a data frame, a row for each run and evaluation.

        frame = localsgd.results.frame("runs/sweep")
        frame[frame.ended].groupby("local_steps").test_accuracy_fraction.agg(["mean", "std"])

    Args:
        paths: folders of runs, or of a sweep or a comparison.
        library: `"pandas"` or `"polars"`; if not given, pandas where it is installed, else polars.

    Raises:
        UserError: a path has no run, or the library is not installed.
    """
    given = [paths] if isinstance(paths, Path | str) else paths
    wanted = (library,) if library else ("pandas", "polars")
    for name in wanted:
        if name not in ("pandas", "polars"):
            raise UserError(f"there is no library {name!r} here; give pandas or polars")
        if find_spec(name) is not None:
            return importlib.import_module(name).DataFrame(columns(rows(given)))
    raise UserError(
        f"a data frame needs {' or '.join(wanted)}, which is not installed; "
        f"pip install {wanted[0]}, or use localsgd.results.rows"
    )
