"""The HTML page: the report's Markdown, rendered with one style sheet. It loads nothing."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from experiments.report.content import PENDING
from experiments.report.text import Text, slug

STYLE = Path(__file__).with_name("style.css")
CLASS = {
    "reproduced": "yes",
    "not reproduced": "no",
    "not decidable at this scale": "open",
    "consistent": "fits",
    "not consistent": "misfits",
    PENDING: "later",
}
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>The paper's tables and figures, reproduced</title>
"""


def page(text: Text) -> str:
    """The whole page."""
    body = markdown().render(text.written(), {"images": text.images})
    style = STYLE.read_text(encoding="utf-8")
    return f"{HEAD}<style>{style}</style></head>\n<body>\n{body}</body></html>\n"


def markdown() -> MarkdownIt:
    """What renders the report."""
    made = MarkdownIt("commonmark").enable("table")
    for rule in (heading_open, image, strong_open, table_open, table_close):
        made.add_render_rule(rule.__name__, rule)
    return made


# Rules are called as methods of the renderer.
def heading_open(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any
) -> str:
    """A heading has the anchor that links expect."""
    tokens[index].attrSet("id", slug(tokens[index + 1].content))
    return self.renderToken(tokens, index, options, env)


def image(
    self: RendererHTML,
    tokens: Sequence[Token],
    index: int,
    options: OptionsDict,
    env: MutableMapping[str, Any],
) -> str:
    """An image is embedded."""
    tokens[index].attrSet("src", env["images"][tokens[index].attrGet("src")].address)
    tokens[index].attrSet("loading", "lazy")
    return self.image(tokens, index, options, env)


def strong_open(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: Any
) -> str:
    """A claim's state is a badge."""
    if (name := CLASS.get(tokens[index + 1].content)) is not None:
        tokens[index].attrSet("class", f"badge {name}")
    return self.renderToken(tokens, index, options, env)


def table_open(self: RendererHTML, *_: Any) -> str:
    """A table scrolls in itself where the screen is narrow."""
    return '<div class="scroll" tabindex="0"><table>\n'


def table_close(self: RendererHTML, *_: Any) -> str:
    return "</table></div>\n"
