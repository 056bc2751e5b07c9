"""What there is to reproduce: a line for each label, and what the paper has under it."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from experiments import costs
from experiments.engine import distinct
from experiments.registry import Entry, entries
from experiments.scales import SCALES
from experiments.store import RESULTS, Store
from experiments.studies import studies
from experiments.study import Job, Study
from localsgd.basics.units import duration, plural
from localsgd.show.narrow import Fitting

SPEED = 100e9
"""Operations a second that costs are told for: a machine of two cores, in float32 about so many."""
NEEDS = {"cpu": "CPU", "gpu": "GPU", "beyond": "many GPUs"}


def overview(folder: Path = RESULTS) -> Table:
    """A row for each label: what the full size needs, and for each scale what is done and what all
    of it costs here.
    """
    cores = os.cpu_count() or 1
    table = Fitting(
        title="The paper's tables and figures",
        title_justify="left",
        caption=(
            f"By scale: jobs done of all, and how long all take on {plural(cores, 'core')}, tuning "
            "left out; measured where they are done, else estimated. Jobs that several studies "
            "share are counted in each."
        ),
        caption_justify="left",
    )
    for heading in ("name", "label", "needs", *SCALES, "state"):
        table.add_column(heading, no_wrap=True)
    stores = [Store(scale, folder) for scale in SCALES.values()]
    for found in entries().values():
        study = studies()[found.label]
        cells = [_progress(study, store, cores) for store in stores]
        table.add_row(found.name, found.label, NEEDS[found.needs], *cells, state(study, stores))
    return table


def _progress(study: Study, store: Store, cores: int) -> str:
    if store.scale.name not in study.scales:
        return "–"
    jobs = _all(study, store)
    if not jobs:
        return "counted"
    done = sum(store.of(job) is not None for job in jobs)
    seconds = costs.seconds(jobs, store)
    return f"{done}/{len(jobs)}, {'?' if seconds is None else duration(seconds / cores)}"


def state(study: Study, stores: list[Store]) -> str:
    """The largest scale at which all is done."""
    for store in reversed(stores):
        if store.scale.name not in study.scales:
            continue
        jobs = _all(study, store)
        if all(store.of(job) is not None for job in jobs):
            return f"done: {store.scale.name}" if jobs else "counted"
    return "ready"


def _all(study: Study, store: Store) -> list[Job]:
    return distinct(study.jobs(store.scale) if study.whole is None else study.whole(store))


def cost(found: Entry) -> str:
    """How long the full size takes on a machine like this one."""
    return duration(found.operations / SPEED) if found.operations else "–"


def details(found: Entry) -> RenderableType:
    """What it shows, how it was made, its numbers, and how to make it here."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("label", f"{found.label} ({found.kind}, {found.part})")
    grid.add_row("shows", found.shows)
    grid.add_row("setting", found.setting)
    for model, task, epochs, runs in found.training:
        grid.add_row(
            "full size",
            f"{plural(runs, 'run')} of {model} on {task}, {plural(epochs, 'epoch')} each",
        )
    if found.operations:
        grid.add_row("cost", f"{cost(found)} at {SPEED / 1e9:g} GFLOP/s, tuning left out")
    grid.add_row("run it by", found.command or f"localsgd reproduce {found.name}")
    return Group(grid, _numbers(found))


def _numbers(found: Entry) -> RenderableType:
    if not found.rows:
        return Text("The paper gives no numbers beside the picture.", style="dim")
    table = Fitting(title="in the paper", title_justify="left")
    for column in found.columns:
        table.add_column(column.replace("_", " "))
    for row in found.rows:
        table.add_row(*map(str, row))
    return table
