"""HTML as values: text is escaped unless it is HTML already.

>>> print(element("p", "1 < 2, ", element("b", "always"), class_="note"))
<p class="note">1 &lt; 2, <b>always</b></p>
"""

from __future__ import annotations

from html import escape

VOID = frozenset({"br", "col", "hr", "img", "input", "meta"})


class Html(str):
    """Text that is HTML and needs no escaping."""

    __slots__ = ()


Child = str | int | float | None


def element(name: str, /, *children: Child, **attributes: str | bool | None) -> Html:
    """`<name ...>children</name>`. An underscore that ends an attribute's name is dropped, others
    are hyphens; one of `True` has no value, one of `None` or `False` is left out.
    """
    words = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{words}>")
    return Html(f"<{name}{words}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Html:
    """One after the other; `None` is nothing."""
    return Html("".join(_escaped(child) for child in children if child is not None))


def _escaped(child: str | int | float) -> str:
    return child if isinstance(child, Html) else escape(str(child))


def _attribute(key: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(value)}"'
