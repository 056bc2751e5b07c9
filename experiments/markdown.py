"""Markdown: text that means itself, tables, and numbers over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

ESCAPED = str.maketrans({**{mark: f"\\{mark}" for mark in r"\`*_[<>&|~$"}, "\n": " "})


def escaped(text: str) -> str:
    r"""Text in which nothing is taken for a mark of Markdown or HTML.

    >>> print(escaped("a*b | <b>[1]"))
    a\*b \| \<b\>\[1]
    """
    return text.translate(ESCAPED)


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()
) -> str:
    """A table of cells that are Markdown; columns of `numbers` are aligned to the right."""
    rules = ["---:" if index in numbers else "---" for index in range(len(headings))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (headings, rules, *rows))


def spread(values: Sequence[float], form: str = ".2f", deviation: str = "") -> str:
    """`1.23 ± 0.04`: the mean over seeds and its deviation; the mean alone for one seed.

    Args:
        form: of the mean.
        deviation: its form; that of the mean if not given.
    """
    mean = format(statistics.fmean(values), form)
    return f"{mean} ± {statistics.stdev(values):{deviation or form}}" if len(values) > 1 else mean
