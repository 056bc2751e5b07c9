"""The console of every command."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from localsgd.basics.printable import printable


class Console(rich.console.Console):
    """A console that prints text as it stands: no markup, no names of emoji, no control characters.

    What it prints may come from a folder of someone else.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """A string as text, of the width that it will have."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The parts of what is printed; rich's own commands to the terminal stay."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
