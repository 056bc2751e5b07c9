"""What others have written is printed as it stands, and commands no terminal."""

from __future__ import annotations

import io

import pytest
from rich.live import Live
from rich.table import Table
from rich.text import Text

from localsgd.basics.console import Console
from localsgd.basics.printable import printable

ODD = "[/x] [bold]b[/] :smile: \x1b]0;P\x07"


def table() -> Table:
    made = Table.grid()
    made.add_row(ODD)
    return made


@pytest.mark.parametrize("shown", [ODD, Text(ODD), table()], ids=["str", "text", "table"])
def test_text_is_printed_as_it_stands(shown: object) -> None:
    file = io.StringIO()
    Console(file=file, width=60).print(shown)
    said = file.getvalue()
    assert "[/x] [bold]b[/] :smile: ?]0;P" in said
    assert printable(said) == said


def test_titles_are_text_too() -> None:
    file = io.StringIO()
    made = Table("a", title=ODD, caption=ODD)
    made.add_row("a cell that is wide enough for the title above it and below")
    Console(file=file, width=80).print(made)
    assert file.getvalue().count("[/x] [bold]b[/] :smile: ?]0;P") == 2


def test_a_terminal_is_still_commanded_by_rich() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=60)
    with Live(Text(ODD, style="bold"), console=console, auto_refresh=False):
        pass
    said = file.getvalue()
    assert "\x1b[?25l" in said  # the cursor is hidden
    assert "\x1b[1m" in said  # bold
    assert "\x1b]0;" not in said
