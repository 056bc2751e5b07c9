"""The commands `show` and `tasks`."""

from __future__ import annotations

from localsgd.basics.console import Console
from localsgd.cli.options import ShowCommand, TasksCommand
from localsgd.cli.swept import shown, swept_in
from localsgd.errors import UserError
from localsgd.results.rows import folders_of
from localsgd.show import pictures, tables
from localsgd.show.canvas import check_picture
from localsgd.show.narrow import Fitting
from localsgd.show.strips import WIDTH
from localsgd.train.config.methods import method, method_names
from localsgd.train.data import models, tasks


def show(command: ShowCommand) -> int:
    """Shows one run in full, or several side by side; a sweep with its differences."""
    if not command.folders:
        raise UserError("show needs the folder of a run, or of a sweep; give one or more")
    if command.figure is not None:
        check_picture(command.figure)
    console = Console()
    folders = folders_of(command.folders)
    swept = swept_in(command.folders[0]) if len(command.folders) == 1 else None
    if swept is not None and any(folder.path.name in swept.runs for folder in folders):
        table, folders, note = shown(swept, folders)
        console.print(table)
        console.print(note, end="\n\n" if note else "\n")
    if len(folders) == 1:
        console.print(tables.run(folders[0]))
    else:
        console.print(tables.comparison(folders))
        console.print(pictures.text(folders, min(WIDTH, console.width)))
    if command.figure is not None:
        if len(folders) == 1:
            pictures.run(folders[0], command.figure)
        else:
            pictures.comparison(folders, command.figure)
        console.print(f"Picture: {command.figure}")
    return 0


def list_all(command: TasksCommand) -> int:
    """Lists tasks, models and methods."""
    console = Console()
    table = Fitting(title="Tasks", title_justify="left")
    for heading in ("task", "what", "train", "test", "model", "data"):
        table.add_column(heading)
    for row in tasks.describe(command.data_dir):
        card = row.card
        missing = "made when it is loaded" if row.made else "not on this machine"
        found = str(row.found) if row.found else f"{missing}: {card.source}"
        sizes = f"{card.train_size:,}", f"{card.test_size:,}"
        table.add_row(card.name, card.title, *sizes, card.default_model, found)
    console.print(table)
    table = Fitting(title="Methods", title_justify="left")
    for heading in ("method", "what", "settings"):
        table.add_column(heading)
    for name in method_names():
        found = method(name)
        settings = " ".join("--" + setting.replace("_", "-") for setting in found.uses)
        table.add_row(name, found.title, settings)
    console.print(table)
    console.print("Models: " + ", ".join(models.model_names()))
    return 0
