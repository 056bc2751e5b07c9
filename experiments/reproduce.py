"""`localsgd reproduce`: the paper's tables and figures, listed or one in full."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from experiments.registry import Entry, entries, entry
from localsgd.errors import UserError
from localsgd.units import duration

SPEED = 100e9
"""Operations a second that costs are told for: a machine of two cores, in float32 about so many."""
NEEDS = {"cpu": "CPU", "gpu": "GPU", "beyond": "many GPUs"}


def reproduce(names: Sequence[str], *, listing: bool, console: Console | None = None) -> int:
    """Lists everything, or shows what the paper has under each of `names`."""
    console = console or Console()
    if listing == bool(names):
        raise UserError(
            "reproduce needs a label or a short name, or --list for all there are; give one of them"
        )
    if listing:
        console.print(overview())
    for found in [entry(name) for name in names]:
        console.print(details(found))
    return 0


def overview() -> Table:
    """A row for each label: what it needs at full size, what that costs here, and its state."""
    table = Table(
        title="The paper's tables and figures",
        title_justify="left",
        caption=f"Runs and cost of the full size, tuning left out, at {SPEED / 1e9:g} GFLOP/s.",
        caption_justify="left",
    )
    for heading in ("name", "label", "needs", "runs", "cost", "numbers", "state"):
        right = heading in ("runs", "cost", "numbers")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for found in entries().values():
        runs = sum(training.runs for training in found.training)
        table.add_row(
            found.name,
            found.label,
            NEEDS[found.needs],
            str(runs) if runs else "–",
            cost(found),
            str(len(found.rows)) if found.rows else "–",
            state(found),
        )
    return table


def cost(found: Entry) -> str:
    """How long the full size takes on a machine like this one."""
    return duration(found.operations / SPEED) if found.operations else "–"


def state(found: Entry) -> str:
    """Whether something here reproduces it."""
    return "ready" if found.command else "not yet"


def details(found: Entry) -> RenderableType:
    """What it shows, how it was made, its numbers, and how to make it here."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("label", f"{found.label} ({found.kind}, {found.part})")
    grid.add_row("shows", found.shows)
    grid.add_row("setting", found.setting)
    for model, task, epochs, runs in found.training:
        grid.add_row("full size", f"{runs} runs of {model} on {task}, {epochs} epochs each")
    if found.operations:
        grid.add_row("cost", f"{cost(found)} at {SPEED / 1e9:g} GFLOP/s, tuning left out")
    grid.add_row("run it by", found.command or "nothing yet")
    return Group(grid, _numbers(found))


def _numbers(found: Entry) -> RenderableType:
    if not found.rows:
        return Text("The paper gives no numbers beside the picture.", style="dim")
    table = Table(title="in the paper", title_justify="left")
    for column in found.columns:
        table.add_column(column.replace("_", " "))
    for row in found.rows:
        table.add_row(*map(str, row))
    return table
