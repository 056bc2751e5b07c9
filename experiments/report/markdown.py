"""The report as Markdown for `docs/`: the same claims and tables, figures in files beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.report.content import PENDING, Content, Section
from experiments.report.page import MEANING, facts
from experiments.report.pieces import text_of
from experiments.study import Page, Table
from localsgd.record import write_whole

ESCAPED = str.maketrans({"|": r"\|", "<": "&lt;", "*": r"\*", "_": r"\_", "\n": " "})


def write(content: Content, path: Path) -> None:
    """Writes the page, and its figures into `images/NAME/` beside it; older ones are removed."""
    folder = path.parent / "images" / path.stem
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.svg"), *folder.glob("*.png")):
        old.unlink()
    parts = [*_head(content, path.name)]
    for one in content.sections:
        parts += _section(one, content, folder, path.parent)
    write_whole(path, ("\n\n".join(parts) + "\n").encode())


def _head(content: Content, name: str) -> Iterator[str]:
    yield "# The paper's tables and figures, reproduced"
    tuned = " --tune" if content.tunes else ""
    yield (
        f"Made by `localsgd report --scale {content.scale}{tuned} --markdown {name}` from the "
        "records in `experiments/results/reproduce/`; see [how to reproduce](reproduce.md)."
    )
    counted = ", ".join(f"{count} {state}" for state, count in content.counts.items())
    yield f"{len(content.claims)} claims: {counted}. {MEANING}"
    yield "\n".join(f"- {name}: {value}" for name, value in facts(content))
    yield "## Claims"
    rows = [
        [content.state(claim), claim.sentence, f"{entry.name}, {claim.place}", claim.evidence]
        for entry, claim in content.claims
        if content.state(claim) != PENDING
    ]
    yield grid(["", "claim", "where", "evidence"], rows)
    waiting = [(e, claim) for e, claim in content.claims if content.state(claim) == PENDING]
    if waiting:
        yield f"{PENDING[0].upper()}{PENDING[1:]}:"
        yield "\n".join(f"- {entry.name}: {_escaped(claim.sentence)}" for entry, claim in waiting)


def _section(one: Section, content: Content, folder: Path, docs: Path) -> Iterator[str]:
    found = one.page or Page()
    yield f"## {one.entry.name}"
    yield f"{one.entry.shows} (`{one.entry.label}`; {one.progress}.)"
    yield f"In the paper: {_escaped(one.entry.setting)}"
    for table in found.tables:
        yield _table(table)
    if not found.tables and one.entry.rows:
        yield grid(
            [*one.entry.columns], [[text_of(cell) for cell in row] for row in one.entry.rows]
        )
    for picture in found.pictures:
        if (image := content.image(picture)) is not None:
            path = folder / f"{one.entry.name}-{picture.name}.{image.kind}"
            path.write_bytes(image.content)
            yield f"![{_escaped(picture.title)}]({path.relative_to(docs).as_posix()})"
    if found.notes:
        yield "\n".join(f"- {_escaped(note)}" for note in found.notes)


def _table(table: Table) -> str:
    rows = [[text_of(cell) for cell in row] for row in table.rows]
    return f"{_escaped(table.title)}:\n\n{grid(table.headings, rows)}"


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [headings, ["---"] * len(headings)]
    text = [" | ".join(map(_escaped, line)) for line in (headings, *rows)]
    return "\n".join(f"| {line} |" for line in (text[0], " | ".join(lines[1]), *text[1:]))


def _escaped(text: str) -> str:
    return text.translate(ESCAPED)
