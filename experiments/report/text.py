"""The report as Markdown: a summary, the claims by verdict, a section for each label, and the runs.

The page is rendered from it. `docs/` has it without runs, and without the links to them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.markdown import escaped, table
from experiments.registry import Entry
from experiments.report.content import PENDING, STATES, Configuration, Content, Section, anchor_of
from experiments.report.images import Image
from experiments.report.sparkline import sparkline
from experiments.report.tally import Tally, reasons
from experiments.showing import cell_text
from experiments.study import Cell, Claim, Job, Kind, Page, Picture, Record, Table
from localsgd.basics.units import plural

MEANING = (
    "Student's t over seeds decides, of differences paired by seed: once all planned runs are "
    "done, with 5 seeds or more, at 5 % after Holm's correction within a family of claims, and "
    "unless a test by sign flips objects (p above 5 %; of five seeds, above its least, 6.25 %). A "
    "claim is reproduced where the mean lies in what is claimed, not reproduced where it lies "
    "outside, and else not decidable at this scale. Evidence about the same numbers is counted "
    "once. What is computed from the paper's own numbers, or modelled on a clock fitted to them, "
    "is consistent at best, and counted apart."
)
KINDS: dict[Kind, str] = {
    "measured": "Trained and measured here",
    "computed": "Computed from the paper's own numbers, or counted: consistency, not reproduction",
    "modelled": "Modelled: on a clock that is fitted to the paper's minutes",
}
SCALES = {
    "smoke": "seconds in all; it shows that everything works, and decides nothing",
    "small": "CPU minutes a study: small networks, part of the data, the paper's proportions",
    "medium": "CPU days: the paper's network, data and procedure, fewer images and epochs",
    "paper": "the paper's own size",
}
MANY = 4
"""Links to more configurations are folded up."""
HIDDEN = frozenset({"weights"})
"""Scalars of a record that say nothing to people."""


@dataclass(frozen=True)
class Text:
    """One text with its images.

    Args:
        content, tally: what it says.
        images: by their address in the text.
        folder: of those addresses.
        runs: whether runs are listed, and linked to.
    """

    content: Content
    tally: Tally
    folder: str
    runs: bool
    images: dict[str, Image] = field(default_factory=dict)

    def written(self, made_by: str = "") -> str:
        """All of it; `made_by` is a paragraph on where it comes from."""
        parts = [*self._summary(made_by)]
        for kind, title in KINDS.items():
            parts += self._claims(kind, title)
        for one in self._sections:
            parts += self._section(one)
        parts += self._runs() if self.runs else ()
        return "\n\n".join(part for part in parts if part) + "\n"

    def _summary(self, made_by: str) -> Iterator[str]:
        yield f"# The paper's tables and figures, reproduced at the {self.content.scale} scale"
        yield (
            "“Don't Use Large Mini-Batches, Use Local SGD”, Lin, Stich, Patel and Jaggi, ICLR 2020"
        )
        yield " ".join(self.tally.sentences)
        yield table(self.tally.headings, self.tally.rows)
        yield made_by
        yield "\n".join(
            f"- {title}: {self._counts(kind)}."
            for kind, title in KINDS.items()
            if self.content.of_kind(kind)
        )
        yield MEANING
        yield "\n".join(f"- {name}: {escaped(value)}" for name, value in facts(self.content))
        names = (one.entry.name for one in self._sections)
        yield " · ".join(f"[{name}](#{name})" for name in names)
        yield "## Why this scale can or can't show it"
        for title, reason in reasons(self.content.scale):
            yield f"**{escaped(title)}.** {escaped(reason)}"

    @property
    def _sections(self) -> Sequence[Section]:
        """All labels; in `docs/` those that have a design at the scale."""
        return [one for one in self.content.sections if self.runs or one.page is not None]

    def _counts(self, kind: Kind) -> str:
        counted = Counter(self.content.state(claim) for _, claim in self.content.of_kind(kind))
        return ", ".join(
            f"{counted[state]} [{state}](#{slug(_heading(state, kind))})"
            for state in STATES
            if counted[state]
        )

    def _claims(self, kind: Kind, title: str) -> Iterator[str]:
        found = self.content.of_kind(kind)
        if found:
            yield f"## {title}"
        for state in STATES:
            items = [
                f"- {self._claim(claim, entry)}"
                for entry, claim in found
                if self.content.state(claim) == state
            ]
            if items:
                yield f"### {_heading(state, kind)}"
                yield "\n".join(items)

    def _claim(self, claim: Claim, entry: Entry | None = None) -> str:
        where = f"[{entry.name}](#{entry.name}), " if entry else ""
        said = f"{escaped(claim.sentence)} {where}{escaped(claim.place)}: {escaped(claim.evidence)}"
        return f"{said} {self._links(claim.jobs)}".rstrip()

    def _section(self, one: Section) -> Iterator[str]:
        entry, found = one.entry, one.page or Page()
        yield f"## {entry.name}"
        about = f"`{entry.label}`; {entry.kind}, {entry.part}; {one.progress}."
        yield f"{escaped(entry.shows)} ({about})"
        yield f"In the paper: {escaped(entry.setting)}"
        for shown in found.tables:
            yield from self._table(shown)
        if not found.tables and entry.rows:
            headings = [name.replace("_", " ") for name in entry.columns]
            yield from self._table(Table("In the paper", headings, entry.rows))
        for picture in found.pictures:
            yield from self._figure(entry, picture)
        if self.runs:
            judged = ((self.content.state(claim), claim) for claim in found.claims)
            yield "\n".join(f"- **{state}** {self._claim(claim)}" for state, claim in judged)
        yield "\n".join(f"- {escaped(note)}" for note in found.notes)

    def _table(self, shown: Table) -> Iterator[str]:
        headings = [escaped(one) for one in shown.headings]
        rows = [[escaped(cell_text(cell)) for cell in row] for row in shown.rows]
        if self.runs and any(shown.jobs):
            headings.append("runs")
            for index, row in enumerate(rows):
                row.append(self._links(shown.jobs[index]) if index < len(shown.jobs) else "")
        columns = [*zip(*shown.rows, strict=True)]
        numbers = [index for index, column in enumerate(columns) if all(map(_number, column))]
        yield f"**{escaped(shown.title)}**"
        yield table(headings, rows, numbers=numbers)

    def _figure(self, entry: Entry, picture: Picture) -> Iterator[str]:
        """A figure with its title; what has no runs yet is named."""
        image = self.content.image(picture)
        title = escaped(picture.title)
        if image is None:
            yield f"*{PENDING}*: {title}"
            return
        yield f"![{title}]({self._kept(f'{entry.name}-{picture.name}', image)})"
        yield f"*{title}* {self._links(picture.jobs, folded=False)}".rstrip()

    def _kept(self, name: str, image: Image) -> str:
        address = f"{self.folder}/{name}.{image.kind}"
        self.images[address] = image
        return address

    def _links(self, jobs: Sequence[Job], *, folded: bool = True) -> str:
        """Links to the runs behind something, one for each configuration: how many are done."""
        if not self.runs:
            return ""
        anchors = dict.fromkeys(anchor_of(job) for job in jobs)
        found = [self.content.configurations[anchor] for anchor in anchors]
        links = " ".join(map(_link, found))
        if not folded or len(found) <= MANY:
            return links
        done, all_ = sum(len(one.done) for one in found), sum(len(one.runs) for one in found)
        summary = f"<summary>{done} of {all_} runs</summary>"
        return f"<details>{summary} {links}</details>"

    def _runs(self) -> Iterator[str]:
        yield "## Runs"
        yield (
            "Settings that are not named are those that the library has by default. The line "
            "beside a title is the test metric over epochs, one for each seed."
        )
        for one in self.content.configurations.values():
            yield from self._configuration(one)

    def _configuration(self, one: Configuration) -> Iterator[str]:
        """Folded up; the anchor lies within, as a browser unfolds what a link leads to."""
        done, all_ = len(one.done), len(one.runs)
        words = plural(all_, "run") if done == all_ else f"{done} of {all_} runs"
        curves = sparkline(one.done)
        spark = "" if curves is None else f" ![{curves[0]}]({self._kept(one.anchor, curves[1])})"
        yield f"<details><summary>\n\n{escaped(one.title)}, {words}{spark}\n\n</summary>"
        yield f'<a id="{one.anchor}"></a>'
        yield "\n".join(
            f"- {escaped(name.replace('_', ' '))}: {escaped(_told(value))}"
            for name, value in one.settings.items()
        )
        yield from _by_seed(one)
        yield "</details>"


def facts(content: Content) -> list[tuple[str, str]]:
    """What the summary says beside the counts."""
    done, all_ = content.runs
    studied = sum(one.page is not None for one in content.sections)
    tuned = "; learning rates of baselines tuned, where that is done" if content.tunes else ""
    return [
        ("scale", f"{content.scale}: {SCALES.get(content.scale, '')}{tuned}"),
        ("labels", f"{len(content.sections)}; with a design at this scale: {studied}"),
        ("runs", f"{done:,} of {all_:,} done"),
        *((name, "; ".join(values)) for name, values in content.origins.items()),
    ]


def slug(heading: str) -> str:
    """The anchor of a heading, as those who render Markdown make it."""
    kept = "".join(one for one in heading.lower() if one.isalnum() or one in " -_")
    return kept.strip().replace(" ", "-")


def _heading(state: str, kind: Kind) -> str:
    return f"{state[0].upper()}{state[1:]}: {kind}"


def _number(cell: Cell) -> bool:
    return not isinstance(cell, str) or not cell or cell[0] in "+-−0123456789"


def _link(one: Configuration) -> str:
    done, all_ = len(one.done), len(one.runs)
    title = escaped(one.title).replace('"', r"\"")
    return f'[{done if done == all_ else f"{done}/{all_}"}](#{one.anchor} "{title}")'


def _by_seed(one: Configuration) -> Iterator[str]:
    names = list(dict.fromkeys(name for record in one.done for name in _scalars(record)))
    rows = []
    for seed, record in sorted(one.runs.items()):
        told = [PENDING] if record is None else [_told(record.get(name, "")) for name in names]
        rows.append([str(seed), *map(escaped, told), *[""] * (len(names) - len(told))])
    headings = ["seed", *(escaped(name.replace("_", " ")) for name in names)]
    yield "**By seed**"
    yield table(headings if names else ["seed", ""], rows, numbers=range(len(headings)))


def _scalars(record: Record) -> list[str]:
    return [
        name
        for name, value in record.items()
        if name not in HIDDEN and (isinstance(value, int | float | str) or _short(value))
    ]


def _short(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= 4
        and all(isinstance(one, int | float) for one in value)
    )


def _told(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(", ", ": "))
