"""The command `export`: results of runs in files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from localsgd.basics.console import Console
from localsgd.cli.options import ExportCommand
from localsgd.cli.sweeping import named
from localsgd.cli.swept import swept_in
from localsgd.errors import UserError
from localsgd.results.contrasts import contrasts
from localsgd.results.grouping import differing, groups
from localsgd.results.rows import Row, columns, folders_of, rows
from localsgd.results.sheet import Sheet, latex, markdown, sheet_of, sheet_of_rows
from localsgd.train.config.run import Run
from localsgd.train.engine.run_folder import check_place, write_whole

By = Literal["configuration", "evaluation"]


def export(command: ExportCommand) -> int:
    """Writes the files that are asked for, all of them or none."""
    usual: dict[str, By] = {
        "csv": "evaluation",
        "parquet": "evaluation",
        "latex": "configuration",
        "markdown": "configuration",
    }
    wanted = {kind: path for kind in usual if (path := getattr(command, kind)) is not None}
    if not wanted:
        raise UserError("export has nothing to write; give --csv, --parquet, --latex or --markdown")
    for kind, path in wanted.items():
        check_place(path.absolute().parent, f"--{kind}")
        if path.is_dir():
            raise UserError(f"--{kind} {path} is a folder; give the name of a file in it")
    if "parquet" in wanted and find_spec("pyarrow") is None:
        raise UserError("--parquet needs pyarrow, which is not installed; pip install pyarrow")
    if command.baseline is not None and command.by == "evaluation":
        raise UserError("--baseline is for lines by configuration; leave it or --by out")
    made = {kind: _content(kind, command.by or usual[kind], command) for kind in wanted}
    for kind, path in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, made[kind])
        Console().print(f"{kind}: {path}", highlight=False, soft_wrap=True)
    return 0


def _content(kind: str, by: By, command: ExportCommand) -> bytes:
    if kind in ("csv", "parquet"):
        if by == "evaluation":
            return _DATA[kind](rows(command.folders))
        sheet = _configurations(command)
        return _DATA[kind]([dict(zip(sheet.headings, row, strict=True)) for row in sheet.rows])
    write = latex if kind == "latex" else markdown
    if by == "configuration":
        return write(_configurations(command)).encode()
    return write(sheet_of_rows(_shortened(rows(command.folders)))).encode()


def _configurations(command: ExportCommand) -> Sheet:
    found = groups(folders_of(command.folders))
    baseline = None
    if command.baseline is not None:
        _check_begun(command.folders)
        baseline = named(command.baseline)
    names = differing(found) or ["method"]
    return sheet_of(contrasts(found, names, baseline))


def _check_begun(folders: Sequence[Path]) -> None:
    """Refuses differences of sweeps of which some runs are not there: they might be decided too
    soon, and corrected for too few.
    """
    for folder in folders:
        swept = swept_in(folder)
        there = 0 if swept is None else sum((folder / name).is_dir() for name in swept.runs)
        if swept is not None and there < len(swept.runs):
            raise UserError(
                f"{there} of {len(swept.runs)} runs of the sweep in {folder} have begun; "
                "differences are exported once all have: give the sweep's command again, or leave "
                "--baseline out"
            )


def _shortened(found: Sequence[Row]) -> list[Row]:
    """Rows without packages and the settings that all runs share: a page has no room for them."""
    settings = [name for name in Run.__struct_fields__ if name != "seed"]
    shared = {name for name in settings if len({repr(row[name]) for row in found}) == 1}
    kept = [name for name in (found[0] if found else {}) if name not in {*shared, "plugins"}]
    return [{name: row[name] for name in kept} for row in found]


def _csv(found: Sequence[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]) if found else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue().encode()


def _parquet(found: Sequence[Row]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns(found)), file)
    return file.getvalue()


_DATA: dict[str, Callable[[Sequence[Row]], bytes]] = {"csv": _csv, "parquet": _parquet}
