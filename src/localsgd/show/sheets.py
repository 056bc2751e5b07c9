"""Tables of text in a terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from localsgd.results.sheet import Sheet
from localsgd.show.narrow import Fitting


def table(sheet: Sheet) -> Table:
    """The table with its notes below."""
    found = Fitting(
        padding=(0, 1, 0, 0),
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        caption=Text("\n".join(sheet.notes), style="dim"),
        caption_justify="left",
    )
    for column, heading in enumerate(sheet.headings):
        widest = max((len(row[column]) for row in sheet.rows), default=0)
        broken = heading.replace(" ", "\n") if len(heading) > widest else heading
        found.add_column(broken, justify="right", overflow="fold", no_wrap=True)
    for row in sheet.rows:
        found.add_row(*map(Text, row))
    return found
