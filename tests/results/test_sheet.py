"""Tables in Markdown and LaTeX; a strict reader of its own stands in for LaTeX."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from localsgd.results.sheet import Sheet, latex, markdown

SHEET = Sheet(
    ["local_steps", "switch", "test accuracy (%)", "difference", "95 % interval"],
    [
        ["1", "first-decay", "98.10", "baseline", ""],
        ["16", "step:4 & more_#1{2}~^\\|<>", "97.90", "-0.20*", "-0.31 to -0.09"],
        ["2 8", "–", "97.00", "+0.10", "–"],
    ],
    ["100 % of it: a note."],
)


def cells_of(text: str) -> list[list[str]]:
    """The cells of a tabular with booktabs; raises at what would not compile."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    start = re.fullmatch(r"\\begin\{tabular\}\{([lr]+)\}", lines[0])
    assert start is not None
    assert lines[1] == r"\toprule"
    assert lines[3] == r"\midrule"
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    found = []
    for line in [lines[2], *lines[4:-2]]:
        assert line.endswith(r" \\")
        cells = re.split(r"(?<!\\)&", line[: -len(r" \\")])
        assert len(cells) == len(start[1])
        found.append([read(cell.strip()) for cell in cells])
    return found


NAMED = {
    "textbackslash": "\\",
    "textasciitilde": "~",
    "textasciicircum": "^",
    "textless": "<",
    "textgreater": ">",
    "textbar": "|",
}


def read(cell: str) -> str:
    """A cell as it would be printed: nothing special is left unescaped, all braces close."""
    token = re.compile(
        r"\\(?P<named>[a-z]+)\{\}|\\(?P<escaped>[&%$#_{}])|\$(?P<math>\^\*|-|\\pm)\$"
        r"|(?P<dash>--)|(?P<plain>[A-Za-z0-9 .,:;()+\-/=?!*'|<>]+?)"
    )
    place, said = 0, ""
    while place < len(cell):
        found = token.match(cell, place)
        assert found is not None, f"{cell[place:]!r} would not compile"
        kind, value = found.lastgroup, found[found.lastgroup or 0]
        assert kind != "plain" or value not in "*|<>", f"{value} is escaped"
        shown = {"named": NAMED.get(value, ""), "math": {"^*": "*", "-": "-"}.get(value, "±")}
        said += shown.get(kind or "", "–" if kind == "dash" else value)
        place = found.end()
    return said


def test_latex_says_what_the_table_says() -> None:
    assert cells_of(latex(SHEET)) == [list(SHEET.headings), *map(list, SHEET.rows)]
    assert latex(SHEET).startswith("% 100 % of it: a note.\n\\begin{tabular}{rlrrr}")


WORDS = {
    "[x] [y]": "{[}x] {[}y]",
    "--vary a–b -1": r"-{}-vary a--b -1",
    "2 × 3 ≤ 4²…": r"2 $\times$ 3 $\leq$ 4$^2$\ldots{}",
    "αλωΔΛ": r"$\alpha$$\lambda$$\omega$$\Delta$$\Lambda$",
    "naïve café Åš": "na\\\"{i}ve caf\\'{e} \\r{A}\\v{s}",
    "日本 ο\x00": "?? ??",
    "a\n b": "a b",
}


@pytest.mark.parametrize("text", WORDS)
def test_signs_that_latex_lacks_by_hand(text: str) -> None:
    sheet = Sheet(["name", "n"], [[text, "1"], ["x", "2"]])
    assert latex(sheet).splitlines()[4] == rf"{WORDS[text]} & 1 \\"


def test_latex_compiles(tmp_path: Path) -> None:
    compiler = shutil.which("pdflatex")
    if compiler is None:
        pytest.skip("pdflatex is not installed")
    cells = [*WORDS, *(row[1] for row in SHEET.rows), *map(chr, range(33, 127)), "±", "→", "γ", "*"]
    table = latex(Sheet(cells[:2], [[cell, cell] for cell in cells], SHEET.notes))
    head = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
    (tmp_path / "table.tex").write_text(f"{head}{table}\\end{{document}}\n")
    done = subprocess.run(
        [compiler, "-interaction=nonstopmode", "-halt-on-error", "table.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in (tmp_path / "table.log").read_text(errors="replace")


def test_the_reader_is_strict() -> None:
    for wrong in ("a_b", "50 %", "a & b", "x^2", "{", "\\foo{}x#", "*"):
        with pytest.raises(AssertionError):
            read(wrong)


def test_numbers_have_a_minus_and_words_a_hyphen() -> None:
    text = latex(SHEET)
    assert "$-$0.31 to $-$0.09" in text
    assert "first-decay" in text


def test_markdown() -> None:
    lines = markdown(SHEET).splitlines()
    assert lines[1] == "| ---: | --- | ---: | ---: | ---: |"
    assert lines[3].startswith("| 16 | step:4 & more_#1{2}~^\\\\|<> | 97.90 | -0.20\\* |")
    assert lines[-1] == "100 % of it: a note."
