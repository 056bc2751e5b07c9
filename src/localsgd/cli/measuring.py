"""The command `landscape`: the loss around the models of finished runs, and between them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import nn

from localsgd.basics.console import Console
from localsgd.basics.files import check_no_link
from localsgd.basics.seeds import generator_for
from localsgd.cli.options import LandscapeCommand
from localsgd.errors import UserError
from localsgd.landscape import Plan, compare, write_report
from localsgd.landscape.announce import Progress as Tell
from localsgd.landscape.statistics import batch_norms
from localsgd.show.narrow import Fitting
from localsgd.train.config.methods import method
from localsgd.train.config.parts import going_on
from localsgd.train.config.run import Run
from localsgd.train.data import models, tasks
from localsgd.train.data.sampling.subset import Batches, batches_of
from localsgd.train.data.task import Task
from localsgd.train.engine.assembly import load_weights, pick_device
from localsgd.train.engine.run_folder import Folder, check_place
from localsgd.train.engine.watching import records as watched_records

Records = list[dict[str, Any]]


def landscape(command: LandscapeCommand) -> int:
    """Measures, writes records and figures, and prints tables."""
    command.check()
    folders = named(command.folders)
    out = command.out
    if out is None:
        out = output_folder(list(folders.values()))
        check_no_link(out)
    check_place(out)
    run = alike(folders)
    wanted = plan(command)
    task = tasks.load(run.task, command.data_dir, device=pick_device(command.device))
    if run.train_samples is not None:
        task = task.subset(run.train_samples)
    data = batches_of(
        task, command.samples or None, names=command.data, batch=command.batch, seed=command.seed
    )
    nets = {name: load(folder, task, command.device) for name, folder in folders.items()}
    estimate_on = augmented(command, task) if estimates(command, nets) else None
    with reported(Console(stderr=True, quiet=command.quiet)) as progress:
        asked = replace(wanted, population=task.train_size)
        noise = sizes(folders) if "noise" in command.what else None
        records = compare(
            nets, task.loss, data, asked, noise=noise, estimate_on=estimate_on, progress=progress
        )
    records = [dated(record, folders) for record in records]
    if "watched" in command.what:
        records += watched(folders)
    files = write_report(records, out)
    console = Console(quiet=command.quiet)
    for table in tables(records):
        console.print(table)
    if estimate_on is not None:
        count = sum(len(y) for _, y in estimate_on)
        console.print(
            f"Batch-norm statistics: measured on {count:,} training samples, read as training "
            "reads them (augmented where the task augments)",
            soft_wrap=True,
        )
    figures = ", ".join(file.name for file in files[1:]) or "none"
    console.print(f"Records: {files[0]}; figures: {figures}", soft_wrap=True)
    return 0


def named(paths: Sequence[Path]) -> dict[str, Folder]:
    """Folders of runs by name: the folder's name, or its whole path if two names are equal."""
    if not paths:
        raise UserError("landscape needs the folder of a run; give one or more")
    whole = [path.resolve() for path in paths]
    if len(set(whole)) < len(whole):
        raise UserError("the same run is given twice; give different folders")
    short = [path.name for path in whole]
    names = short if len(set(short)) == len(short) else list(map(str, paths))
    return {name: Folder.open(path) for name, path in zip(names, paths, strict=True)}


def output_folder(folders: Sequence[Folder]) -> Path:
    """The folder `landscape` inside the run's folder, or beside the folders of several runs."""
    first, *others = (folder.path.resolve() for folder in folders)
    if not others:
        return folders[0].path / "landscape"
    if any(path.parent != first.parent for path in others):
        raise UserError(
            "the runs lie in different folders, so it is unclear where results should go; give a "
            "folder with --out"
        )
    return first.parent / "landscape"


def alike(folders: dict[str, Folder]) -> Run:
    """The first run, after a check that all have the same task, network and data."""
    (first, run), *others = ((name, folder.run) for name, folder in folders.items())
    for name, other in others:
        for setting in ("task", "train_samples", "model", "precision"):
            one, two = getattr(run, setting), getattr(other, setting)
            alike = one == two
            if setting == "precision":  # Weights of the others are float32.
                alike = (one == "float64") == (two == "float64")
            if not alike:
                raise UserError(
                    f"{first} has {setting} {one} and {name} {setting} {two}; "
                    "give runs that have the same"
                )
    return run


def load(folder: Folder, task: Task, device: str) -> nn.Module:
    """The averaged model that a run ended with."""
    if not folder.model.is_file():
        hint = f"finish it by `{going_on(folder.run, folder.path)}`"
        if folder.summary() is not None:
            hint = "the file is gone from its folder"
        raise UserError(f"{folder.path} has no {folder.model.name}, its final model; {hint}")
    run = folder.run
    model = models.build(run.model or task.default_model, task, run.seed, options=run.options)
    if run.precision == "float64":
        model = model.double()
    load_weights(model, folder.model)
    return model.to(pick_device(device)).eval()


def sizes(folders: dict[str, Folder]) -> dict[str, tuple[int, int]]:
    """Samples of a worker's step at the end, and K, of each run."""
    runs = {name: folder.run for name, folder in folders.items()}
    return {name: (_last_batch(run), run.workers or 1) for name, run in runs.items()}


def _last_batch(run: Run) -> int:
    grown = (run.local_steps or (1,))[0] if method(run.method).grows_batch else 1
    return (run.batch or 1) * grown


def plan(command: LandscapeCommand) -> Plan:
    """The measurements that the command asks for."""

    def if_asked(what: str, value: int) -> int:
        return value if what in command.what else 0

    return Plan(
        top=if_asked("eigenvalues", command.top),
        bottom=if_asked("eigenvalues", command.bottom),
        curvature=command.curvature,
        method=command.method,
        trace_products=if_asked("trace", 30),
        density_steps=if_asked("density", 40),
        sharpness="sharpness" in command.what,
        directions=if_asked("curves", command.directions),
        curve_points=command.points,
        surface_points=if_asked("surface", command.points),
        line_points=if_asked("line", command.points),
        plane_points=if_asked("plane", command.points),
        statistics=command.statistics,
        seed=command.seed,
    )


def estimates(command: LandscapeCommand, nets: dict[str, nn.Module]) -> bool:
    """Whether batch-norm statistics are measured anew."""
    wanted = command.statistics == "estimated" or "plane" in command.what
    return wanted and any(True for net in nets.values() for _ in batch_norms(net))


def augmented(command: LandscapeCommand, task: Task) -> Batches:
    """The training samples that are measured on, as training reads them.

    On images without crops and flips a fitted network has other activations, and statistics that
    cost points of accuracy.
    """
    return batches_of(
        task,
        command.samples or None,
        names=("train",),
        batch=command.batch,
        seed=command.seed,
        draws=generator_for(command.seed, "landscape statistics"),
    )["train"]


def dated(record: dict[str, Any], folders: dict[str, Folder]) -> dict[str, Any]:
    """The record, with the epoch added if it is the noise at the end of a run.

    The epoch places it after the noise that was recorded during training.
    """
    if record["kind"] != "step noise":
        return record
    return {**record, "epoch": folders[record["model"]].run.epochs}


def watched(folders: dict[str, Folder]) -> Records:
    """Records of `--watch` from the runs' folders, each with its run's name."""
    return [
        {**record, "model": name}
        for name, folder in folders.items()
        for record in watched_records(folder.path)
        if record["kind"] != "watching"
    ]


@contextmanager
def reported(console: Console) -> Generator[Tell]:
    """A progress bar; nothing is shown if there is no terminal."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    hidden = not console.is_terminal or console.quiet
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=hidden
    ) as bars:
        bar = bars.add_task("", total=None)

        def tell(what: str, done: int, total: int) -> None:
            bars.update(bar, description=what, completed=done, total=total)

        yield tell


def tables(records: Records) -> list[Table]:
    """Tables of single numbers: by model and data set, and by pair of models."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for record in records:
        for heading, value in _cells(record):
            rows.setdefault((record["model"], record["data"]), {})[heading] = value
    found = [_table("Around the models", ("model", "data"), rows)] if rows else []
    pairs = {
        (record["pair"], data): {"barrier of the loss": f"{height:.4g}"}
        for record in records
        if record["kind"] == "interpolation"
        for data, height in record["barrier"].items()
    }
    return [*found, *([_table("Between them", ("line", "data"), pairs)] if pairs else [])]


def _cells(record: dict[str, Any]) -> list[tuple[str, str]]:
    kind = record["kind"]
    if kind == "score":
        accuracy = record["accuracy"]
        cells = [("loss", f"{record['loss']:.4g}")]
        return cells if accuracy is None else [*cells, ("accuracy", f"{100 * accuracy:.2f} %")]
    if kind == "eigenvalues":
        pairs = list(zip(record["values"], record["residuals"], strict=True))
        last = [(f"λ {len(pairs)}", pairs[-1])] if len(pairs) > 1 else []
        return [(name, f"{v:.4g} ± {r:.1g}") for name, (v, r) in [("λ 1", pairs[0]), *last]]
    if kind == "trace":
        return [("trace", f"{record['value']:.4g} ± {record['standard_error']:.1g}")]
    if kind == "sharpness":
        return [("λ 1 ‖w‖²", f"{record['times_norm']:.4g}")]
    if kind == "gradient noise":
        return [("noise of a sample", f"{record['centred']:.4g}")]
    return []


def _table(
    title: str, first: tuple[str, str], rows: dict[tuple[str, str], dict[str, str]]
) -> Table:
    headings = list(dict.fromkeys(heading for row in rows.values() for heading in row))
    table = Fitting(title=title, title_justify="left")
    for name in first:
        table.add_column(name)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for key, row in rows.items():
        table.add_row(*key, *(row.get(heading, "–") for heading in headings))
    return table
