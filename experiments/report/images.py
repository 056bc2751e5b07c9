"""Figures as data: SVG if it is small, else PNG; the same figure gives the same bytes."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from experiments.study import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST_SVG = 60_000
"""Bytes; figures of many points are smaller as PNG."""
DPI = 110


@dataclass(frozen=True)
class Image:
    """A figure in a file's bytes."""

    kind: Literal["svg", "png"]
    content: bytes

    @property
    def address(self) -> str:
        """The image as a data URI."""
        kind = "svg+xml" if self.kind == "svg" else self.kind
        return f"data:image/{kind};base64,{base64.b64encode(self.content).decode()}"


def drawn(picture: Picture) -> Image:
    """A picture, drawn."""
    import matplotlib

    # Text stays text; names within the file follow from its content.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": picture.name}):
        figure = picture.draw()
        content = _saved(figure, "svg")
    if len(content) <= LARGEST_SVG:
        return Image("svg", _without_metadata(content))
    return Image("png", _saved(figure, "png"))


def _saved(figure: Figure, kind: str) -> bytes:
    file = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(file, format=kind, dpi=DPI, facecolor="white", metadata=metadata)
    return file.getvalue()


def _without_metadata(content: bytes) -> bytes:
    return re.sub(rb"<metadata>.*?</metadata>\s*", b"", content, flags=re.DOTALL)
