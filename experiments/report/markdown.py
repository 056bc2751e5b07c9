"""The report as Markdown for `docs/`: the same claims and tables, figures in files beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.report.content import PENDING, STATES, Content, Section
from experiments.report.page import KINDS, MEANING, facts
from experiments.report.pieces import text_of
from experiments.report.tally import Tally
from experiments.study import Kind, Page, Table
from localsgd.train.engine.run_folder import write_whole

ESCAPED = str.maketrans({"|": r"\|", "<": "&lt;", "*": r"\*", "_": r"\_", "\n": " "})


def write(content: Content, tally: Tally, path: Path) -> None:
    """Writes the page, and its figures into `images/NAME/` beside it; older ones are removed."""
    folder = path.parent / "images" / path.stem
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.svg"), *folder.glob("*.png")):
        old.unlink()
    parts = [*_head(content, tally, path.name)]
    for one in content.sections:
        parts += _section(one, content, folder, path.parent)
    write_whole(path, ("\n\n".join(parts) + "\n").encode())


def _head(content: Content, tally: Tally, name: str) -> Iterator[str]:
    yield "# The paper's tables and figures, reproduced"
    yield " ".join(tally.sentences)
    yield grid(tally.headings, tally.rows)
    tuned = " --tune" if content.tunes else ""
    yield (
        f"Made by `localsgd report --scale {content.scale}{tuned} --markdown {name}` from the "
        "records in `experiments/results/reproduce/`; see [how to reproduce](reproduce.md), also "
        "for [the rule of verdicts](reproduce.md#verdicts)."
    )
    yield MEANING
    yield "\n".join(f"- {name}: {value}" for name, value in facts(content))
    yield "## Why a scale can or can't show it"
    for title, reasons in tally.reasons():
        yield f"**{_escaped(title)}.** " + " ".join(map(_escaped, reasons))
    for kind, title in KINDS.items():
        yield from _claims(content, kind, title)


def _claims(content: Content, kind: Kind, title: str) -> Iterator[str]:
    found = [(entry, claim, content.state(claim)) for entry, claim in content.of_kind(kind)]
    if not found:
        return
    counted = Counter(state for _, _, state in found)
    yield f"## {title}"
    told = ", ".join(f"{counted[state]} {state}" for state in STATES if counted[state])
    yield f"{len(found)} claims: {told}."
    rows = [
        [state, claim.sentence, f"{entry.name}, {claim.place}", claim.evidence]
        for entry, claim, state in found
        if state != PENDING
    ]
    if rows:
        yield grid(["", "claim", "where", "evidence"], rows)
    waiting = [(entry, claim) for entry, claim, state in found if state == PENDING]
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
