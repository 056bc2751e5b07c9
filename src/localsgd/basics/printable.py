"""Text of others, fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` without control characters, which could command a terminal; each becomes `?`.

    >>> printable("a\\x1b]0;title\\x07\\nb")
    'a?]0;title?\\nb'
    """
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
