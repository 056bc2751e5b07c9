"""Tables for terminals of every width.

If the columns do not fit, rows are printed as lists, so that no number and no name is cut.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

ROOM = 10_000
"""Width in characters that is enough for every table."""


class Fitting(Table):
    """A table of strings that becomes a list of `heading  value` if it is too wide.

    Words of columns that may wrap are kept whole too. A value too long for what is left of a line
    gets one of its own.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._needed(console, options) <= options.max_width:
            yield from super().__rich_console__(console, options)
        else:
            yield from self._stacked(options.max_width)

    def _needed(self, console: Console, options: ConsoleOptions) -> int:
        """Characters of the narrowest line with whole words, and whole cells of no_wrap columns."""
        room = options.update(width=ROOM, min_width=0)
        whole = Measurement.get(console, room, self).maximum
        return whole - sum(map(_to_spare, self.columns))

    def _stacked(self, width: int) -> Iterator[Text]:
        titles = [_heading(str(column.header)) for column in self.columns]
        indent = 2 + max(map(cell_len, titles))
        if self.title:
            yield Text(str(self.title), style="italic")
        for cells in zip(*(column.cells for column in self.columns), strict=True):
            for title, cell in zip(titles, cells, strict=True):
                value = _on_one_line(str(cell))
                longest = max(map(cell_len, value.split()), default=0)
                line = Text(title.ljust(indent), style="bold")
                if indent + longest > width:
                    yield line
                    yield Text(value)
                else:
                    line.append(value, style="not bold")
                    yield line
            yield Text()
        if self.caption:
            yield self.caption if isinstance(self.caption, Text) else Text(self.caption)


def _to_spare(column: Column) -> int:
    """Characters that a column's longest line has more than its longest word."""
    if column.no_wrap:
        return 0
    texts = [str(column.header), *map(str, column.cells)]
    lines = [cell_len(line) for text in texts for line in text.splitlines()]
    words = [cell_len(word) for text in texts for word in text.split()]
    return max(lines, default=0) - max(words, default=0)


def _heading(text: str) -> str:
    return text.replace("-\n", "").replace("\n", " ")


def _on_one_line(cell: str) -> str:
    return cell.replace("\n±", " ±").replace("\n", ", ")
