"""A study's page in a terminal, and its pictures in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from experiments import costs
from experiments.registry import entry
from experiments.store import Store
from experiments.study import Cell, Claim, Job, Page, Picture, Records, Study, Table
from localsgd.basics.units import duration, plural
from localsgd.errors import UserError
from localsgd.landscape.figures.style import save
from localsgd.show.narrow import Fitting

STYLES = {
    "reproduced": "green",
    "not reproduced": "red",
    "not decidable at this scale": "yellow",
    "consistent": "cyan",
    "not consistent": "magenta",
}


def forecast(jobs: Sequence[Job], store: Store, processes: int) -> str:
    """The amount of work left, and about how long it takes."""
    due = [job for job in jobs if store.of(job) is None]
    text = f"{store.scale.name}: {plural(len(jobs), 'job')}, {len(jobs) - len(due)} done"
    if not due:
        return text
    seconds = costs.seconds(due, store, costs.calibrated(jobs, store))
    if seconds is None:
        return text
    return f"{text}; the rest takes about {duration(seconds / processes)}"


def outlook(study: Study, jobs: Sequence[Job], store: Store, processes: int) -> str:
    """The time of a whole study whose later work follows from its earlier results."""
    seconds = costs.seconds(jobs, store, costs.calibrated(jobs, store))
    known = "" if seconds is None else f", about {duration(seconds / processes)} in all"
    return (
        f"{entry(study.label).both} at scale {store.scale.name}: {plural(len(jobs), 'run')}"
        f"{known} on {plural(processes, 'core')}, what is done already included; it can be cut "
        "off and goes on"
    )


def show(study: Study, page: Page, records: Records, pictures: Path, console: Console) -> None:
    """Prints its tables, claims and notes, and writes its pictures."""
    found = entry(study.label)
    console.rule(f"{found.both}: {found.shows}", align="left")
    for table in page.tables:
        console.print(_shown(table))
    for claim in page.claims:
        console.print(_judged(claim))
    for note in page.notes:
        console.print(Text(f"note: {note}", style="dim"))
    for picture in page.pictures:
        if picture.jobs and all(records.of(job) is None for job in picture.jobs):
            continue  # nothing of it is there yet
        path = _written(picture, pictures / f"{found.name}-{picture.name}.png")
        console.print(Text(f"picture: {path}", style="dim"))


def _shown(table: Table) -> Fitting:
    shown = Fitting(title=Text(table.title), title_justify="left")
    for heading in table.headings:
        shown.add_column(Text(heading), overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(cell_text(cell)) for cell in row))
    return shown


def cell_text(cell: Cell) -> str:
    """A cell's text; dots if it is not done yet."""
    if cell is None:
        return "…"
    return f"{cell:.5g}" if isinstance(cell, float) else str(cell)


def _judged(claim: Claim) -> Text:
    return Text.assemble(
        (claim.state, STYLES[claim.state]), ": ", claim.sentence, (f" {claim.evidence}", "dim")
    )


def _written(picture: Picture, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return save(picture.draw(), path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror}; name another place with --work"
        ) from None
