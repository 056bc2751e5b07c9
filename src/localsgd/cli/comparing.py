"""The command `compare`: methods, and other settings, on equal terms."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from localsgd.basics.console import Console
from localsgd.cli.options import CompareCommand
from localsgd.cli.training import (
    SAME,
    TRUNKS,
    complete,
    here,
    interrupted,
    leads,
    start,
    starts_processes,
    stopping,
    verdict,
    without_auto,
)
from localsgd.errors import UserError
from localsgd.show import pictures, tables
from localsgd.show.strips import WIDTH
from localsgd.train.config.methods import method
from localsgd.train.config.run import Run, checked, to_json
from localsgd.train.config.unused import unused_settings
from localsgd.train.config.vary import Point, points, seeds_of
from localsgd.train.engine.run_folder import Folder, check_place


def compare(command: CompareCommand) -> int:
    """Trains the methods and seeds that have not ended yet, and shows all of them together."""
    command.hosting.check()
    runs = compared(command)
    check_runs(command.out, runs)
    hosting = without_auto(command.hosting, list(runs.values()))

    def stopped() -> str:
        return interrupted([command.out / name for name in runs], SAME)

    if starts_processes(hosting, list(runs.values())):

        def arguments(config: Path) -> list[str]:
            names = ["--methods", *command.methods]
            seeds = ["--seeds", *command.seeds] if command.seeds else []
            vary = ["--vary", *command.vary] if command.vary else []
            places = [f"--config={config}", f"--out={command.out}"]
            return ["compare", *places, *names, *seeds, *vary]

        status = start(hosting, command.run, arguments, stopped)
    else:
        with stopping(stopped), here(next(iter(runs.values())), hosting) as host:
            for name, wanted in runs.items():
                host.train_unless_ended(wanted, command.out / name, name, command.out / TRUNKS)
        status = 0
    if status == 0 and leads():
        folders = [Folder(command.out / name) for name in runs]
        report(command.out, folders, Console(quiet=command.hosting.quiet))
    return status or verdict([command.out / name for name in runs])


def compared(command: CompareCommand) -> dict[str, Run]:
    """The runs of a comparison by the names of their folders.

    Flat methods put all workers on one level, and synchronise as often as the outermost level of
    hierarchical ones.
    """
    varied = points(command.vary)
    for name in command.methods:
        if command.methods.count(name) > 1:
            raise UserError(f"--methods names {name} twice; give each method once")
    if any("method" in point.values for point in varied):
        raise UserError("compare varies methods by --methods; leave method out of --vary")
    runs: dict[str, Run] = {}
    for seed in seeds_of(command.seeds) if command.seeds else (command.run.seed,):
        for name in command.methods:
            for point in varied:
                changed = msgspec.structs.replace(
                    _of_method(point.of(command.run), name), seed=seed
                )
                parts = [name, *([folder_name(point)] if point.words else [])]
                label = ",".join(parts) + (f"-seed{seed}" if command.seeds else "")
                runs[label] = complete(checked(changed))
    if not runs:
        raise UserError("there are no methods to compare; give some by --methods")
    check_varied(runs, varied)
    return runs


def _of_method(wanted: Run, name: str) -> Run:
    """`wanted` by another method, with as many workers, and syncs of all workers as often."""
    chosen, topology = method(name), wanted.parsed_topology()
    given = wanted.local_steps or ((2,) * topology.levels if topology.levels > 1 else (8,))
    outermost = (math.prod(given),) if len(given) == topology.levels else given
    flat = not chosen.several_levels
    return msgspec.structs.replace(
        wanted,
        method=name,
        workers=None,
        topology=str(topology.workers) if flat else str(topology),
        local_steps=None if "local_steps" not in chosen.uses else outermost if flat else given,
    )


def check_varied(runs: Mapping[str, Run], varied: Sequence[Point]) -> None:
    """Refuses settings that change nothing, and runs that are equal.

    Args:
        runs: completed, by name.
        varied: the settings that tell them apart.
    """
    names = {name for point in varied for name in point.values}
    alike: dict[bytes, str] = {}
    for name, wanted in runs.items():
        if idle := [setting for setting in unused_settings(wanted, names) if setting in names]:
            raise UserError(
                f"{name}: {idle[0]} has no effect with method {wanted.method}; leave it out, or "
                f"list what belongs together, such as --vary method/{idle[0]}=..."
            )
        other = alike.setdefault(to_json(wanted), name)
        if other != name:
            raise UserError(f"{other} and {name} are the same run; leave one of them out")


def folder_name(point: Point) -> str:
    """A folder's name for a point: its own, or that and a digest where it is no file's name."""
    plain = re.sub(r"[^A-Za-z0-9._=+,-]+", "-", point.name)
    if plain == point.name and len(plain) <= 120:
        return plain
    return f"{plain[:100]}-{hashlib.sha256(point.name.encode()).hexdigest()[:8]}"


def check_runs(out: Path, runs: dict[str, Run]) -> None:
    """Refuses a folder that can't be written, or that has runs of another comparison."""
    check_place(out)
    if (out / "run.json").is_file():
        raise UserError(f"{out} is the folder of one run; give another folder with --out")
    for name, wanted in runs.items():
        path = out / name
        if (path / "run.json").is_file() and Folder(path).run != wanted:
            raise UserError(
                f"{path} holds a run with other settings; give another folder with --out, "
                "or the settings that it was begun with"
            )


def report(out: Path, folders: Sequence[Folder], console: Console) -> None:
    """The table and the pictures of a comparison."""
    console.print(tables.comparison(folders))
    console.print(pictures.text(folders, min(WIDTH, console.width)))
    pictures.comparison(folders, out / "comparison.png")
    console.print(f"Picture: {out / 'comparison.png'}")
