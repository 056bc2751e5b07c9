"""Tables as text, and the files that they are written to: Markdown and LaTeX with booktabs."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from localsgd.basics.paired import LEAST_SEEDS
from localsgd.results.contrasts import Contrasts, Line
from localsgd.results.rows import Row

DASH = "–"


@dataclass(frozen=True)
class Sheet:
    """A table of text.

    Args:
        headings: of the columns.
        rows: as many cells in each.
        notes: what the numbers mean, a sentence each.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def sheet_of(found: Contrasts) -> Sheet:
    """A row for each configuration: n, mean, deviation, and the difference to the baseline."""
    unit = f" ({found.metric.unit.strip()})" if found.metric.unit else ""
    compared = found.comparisons > 0
    headings = [*found.names, "n", f"test {found.metric.name}{unit}", "deviation"]
    headings += ["difference", "95 % interval", "p"] if compared else []
    rows = [
        [*line.values.values(), *_judged(line), *(_compared(line) if compared else [])]
        for line in found.lines
    ]
    return Sheet(headings, rows, _notes(found))


def _judged(line: Line) -> list[str]:
    n = str(line.n) if line.n == line.runs else f"{line.n} of {line.runs}"
    if line.diverged:
        return [n, f"{line.diverged} diverged", DASH]
    if line.spread is None:
        return [n, DASH, DASH]
    deviation = line.spread.deviation
    return [n, f"{line.spread.mean:.2f}", DASH if deviation is None else f"{deviation:.2f}"]


def _compared(line: Line) -> list[str]:
    if line.baseline is None:
        return ["baseline", "", ""]
    found = line.difference
    if found is None:
        return [DASH, DASH, DASH]
    mark = "*" if line.decided else ""
    if found.n < 2:
        return [f"{found.mean:+.2f}", DASH, DASH]
    interval = f"{found.low:+.2f} to {found.high:+.2f}"
    return [f"{found.mean:+.2f}{mark}", interval, f"{line.p:.2g}"]


def _notes(found: Contrasts) -> list[str]:
    better = "lower" if found.metric.lower_is_better else "higher"
    notes = [
        f"The averaged model's test {found.metric.name} at the end of the run; {better} is better. "
        "Deviation: sample standard deviation over n seeds."
    ]
    if not found.comparisons:
        return notes
    baselines = dict.fromkeys(line.baseline for line in found.lines if line.baseline is not None)
    each = "the baseline" if len(baselines) == 1 else "the baseline with the same other settings"
    of = ", ".join(map(str, baselines)) if len(baselines) == 1 else ""
    notes.append(
        f"Difference: to {each}{f' ({of})' if of else ''}, paired by seed, with the t-interval of "
        f"its mean, which is not corrected. p is Holm's for {found.comparisons} "
        f"comparison{'s' if found.comparisons > 1 else ''}."
    )
    notes.append(
        "* decided: p is 5 % or less, and so is that of sign flips (of five seeds 6.25 %, their "
        f"least). A verdict takes {LEAST_SEEDS} seeds; with fewer none is marked."
    )
    return notes


def sheet_of_rows(found: Sequence[Row]) -> Sheet:
    """Rows in long form as text; columns that are empty everywhere are left out."""
    names = [
        name for name in (found[0] if found else {}) if any(row[name] is not None for row in found)
    ]
    return Sheet(names, [[_word(row[name]) for name in names] for row in found])


def _word(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def markdown(sheet: Sheet) -> str:
    """The table in Markdown, with its notes below."""

    def line(cells: Sequence[str]) -> str:
        escaped = (cell.replace("|", "\\|").replace("*", "\\*") for cell in cells)
        return f"| {' | '.join(escaped)} |"

    sides = ["---" if _is_text(sheet, column) else "---:" for column in range(len(sheet.headings))]
    table = [line(sheet.headings), f"| {' | '.join(sides)} |", *map(line, sheet.rows)]
    notes = "".join(f"\n{note}\n".replace("*", "\\*") for note in sheet.notes)
    return "\n".join(table) + "\n" + notes


_LATEX = {
    "\\": r"\textbackslash{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "[": "{[}",  # after the end of a line it would be an argument
    "→": r"$\rightarrow$",
    DASH: "--",
    "*": r"$^*$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "²": "$^2$",
    "…": r"\ldots{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


_ACCENTS = dict(zip("\u0300\u0301\u0302\u0303\u0308\u030a\u030c\u0327", "`'^~\"rvc", strict=True))
"""By combining character, the accents of LaTeX."""


def latex(sheet: Sheet) -> str:
    """The table as a `tabular` with booktabs, with its notes as comments in front.

    It needs `\\usepackage{booktabs}`. Text that LaTeX lacks a sign for becomes `?`.
    """
    sides = "".join(
        "l" if _is_text(sheet, column) else "r" for column in range(len(sheet.headings))
    )
    notes = "".join(f"% {note}\n" for note in sheet.notes)

    def line(cells: Sequence[str]) -> str:
        return " & ".join(map(_escaped, cells)) + r" \\"

    body = [line(sheet.headings), r"\midrule", *map(line, sheet.rows)]
    return (
        f"{notes}\\begin{{tabular}}{{{sides}}}\n\\toprule\n"
        + "\n".join(body)
        + "\n\\bottomrule\n\\end{tabular}\n"
    )


def _escaped(text: str) -> str:
    words = " ".join(text.split())
    minus = "$-$" if _is_number(text) else "-"
    marks = {**_LATEX, "-": minus}
    parts = ["".join(marks.get(mark) or _mark(mark) for mark in p) for p in words.split(DASH)]
    return _LATEX[DASH].join(part.replace("--", "-{}-") for part in parts)


def _mark(mark: str) -> str:
    """A character without an entry: a letter with an accent, or a Greek one; else `?`."""
    if mark.isascii():
        return mark if mark.isprintable() else "?"
    base, *accent = unicodedata.normalize("NFD", mark)
    if base.isascii() and len(accent) == 1 and accent[0] in _ACCENTS:
        return f"\\{_ACCENTS[accent[0]]}{{{base}}}"
    kind, _, letter = unicodedata.name(mark, "").partition(" LETTER ")
    if kind == "GREEK SMALL" and letter.isalpha() and mark not in "οςϐ":
        return f"$\\{letter.lower().replace('lamda', 'lambda')}$"
    if mark in "ΓΔΘΛΞΠΣΥΦΨΩ":
        return f"$\\{letter.capitalize().replace('Lamda', 'Lambda')}$"
    return "?"


def _is_text(sheet: Sheet, column: int) -> bool:
    """Whether a column is text, and so stands on the left."""
    cells = [row[column] for row in sheet.rows if row[column] not in ("", DASH, "baseline")]
    return not cells or not all(_is_number(cell) for cell in cells)


def _is_number(cell: str) -> bool:
    parts = cell.rstrip("*").replace(" to ", " ").split()
    try:
        return bool(parts) and all(float(part) is not None for part in parts)
    except ValueError:
        return False
