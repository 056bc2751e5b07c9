"""What a sweep leaves in its folder beside the runs, so that `show` has its table again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from rich.table import Table

from localsgd.basics.typed_json import read_json
from localsgd.errors import UserError
from localsgd.results.contrasts import contrasts
from localsgd.results.grouping import groups
from localsgd.results.sheet import sheet_of
from localsgd.show import sheets
from localsgd.train.config.run import Run
from localsgd.train.config.vary import Point, point
from localsgd.train.engine.run_folder import Folder, write_whole

NAME = "sweep.json"
STALE_SECONDS = 24 * 3600.0
"""A file that has been half written for so long is of a process that is gone, whatever the clocks
of machines say."""


class Swept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sweep, as its last command described it.

    Args:
        runs: names of their folders, in the order of the table.
        varied: the settings in which configurations differ.
        baseline: what differences are to, with the values that its runs are completed to.
    """

    runs: tuple[str, ...]
    varied: tuple[str, ...]
    baseline: Mapping[str, str]

    def __post_init__(self) -> None:
        if len({*self.varied} & {*Run.__struct_fields__}) < len(self.varied):
            raise ValueError(f"varied is {', '.join(self.varied)}; give settings, each once")


def keep(out: Path, runs: Sequence[str], varied: Sequence[str], baseline: Point) -> None:
    """Writes what is swept into the folder `out`; all shards of a sweep may do so at once."""
    out.mkdir(parents=True, exist_ok=True)
    kept = Swept(tuple(runs), tuple(varied), baseline.words)
    for left in out.glob(f"{NAME}.*.partial"):  # of a shard that was killed, or is writing now
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                left.unlink()
    write_whole(out / NAME, msgspec.json.format(msgspec.json.encode(kept)) + b"\n", shared=True)


def swept_in(out: Path) -> Swept | None:
    """The sweep in a folder; None if there is none."""
    path = out / NAME
    if not path.is_file():
        return None
    return read_json(path, Swept, "remove it, or sweep once more")


def check_same(out: Path, runs: Sequence[str], varied: Sequence[str]) -> None:
    """Refuses a folder of another sweep, whose table would be lost, and its runs mixed with these.

    More values or seeds than before are the same sweep.
    """
    before = swept_in(out)
    if before is None:
        return
    if tuple(varied) != before.varied:
        raise UserError(
            f"{out} holds a sweep of {', '.join(before.varied)}, not of {', '.join(varied)}; give "
            "another folder with --out"
        )
    if not set(runs) & set(before.runs):
        raise UserError(
            f"{out} holds a sweep of other values or seeds; give those as well, as what is done is "
            "not done again, or another folder with --out"
        )


def table(folders: Sequence[Folder], varied: Sequence[str], baseline: Point | None) -> Table:
    """The table of a sweep."""
    return sheets.table(sheet_of(contrasts(groups(folders), varied, baseline)))


def shown(swept: Swept, there: Sequence[Folder]) -> tuple[Table, list[Folder], str]:
    """The table of a sweep whose runs may not all be there; those of it that are; and a note.

    Differences are left out until all runs are there: a configuration's own baseline may be among
    the others.
    """
    found = {folder.path.name: folder for folder in there}
    mine = [found[name] for name in swept.runs if name in found]
    if len(mine) == len(swept.runs):
        return table(mine, swept.varied, point(swept.baseline)), mine, ""
    note = (
        f"{len(mine)} of {len(swept.runs)} runs have begun, and n counts these alone; differences "
        "are shown once all have. Give the same command again to go on"
    )
    return table(mine, swept.varied, None), mine, note
