from __future__ import annotations

import io

import pytest
from rich.console import Console

from localsgd.show.narrow import Fitting

LABEL = "fig:a_label_that_is_copied_as_a_whole"


def printed(width: int) -> list[str]:
    table = Fitting(title="What there is")
    for heading in ("name", "label", "test\nacc.", "syncs"):
        table.add_column(heading, no_wrap=True)
    table.add_row("arms", LABEL, "76.25\n±0.31", "1,234\n5")
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_table_where_there_is_room() -> None:
    lines = printed(80)
    assert any(all(word in line for word in ("arms", LABEL, "76.25", "1,234")) for line in lines)


@pytest.mark.parametrize("width", [40, 60])
def test_a_list_where_there_is_none(width: int) -> None:
    lines = printed(width)
    assert any(line.endswith(LABEL) for line in lines)
    assert "test acc.  76.25 ±0.31" in lines
    assert "syncs      1,234, 5" in lines
    assert max(map(len, lines)) <= width
