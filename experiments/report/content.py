"""The content of a report: the paper's entries with their studies' pages and runs."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

from experiments import tuning
from experiments.claims import corrected, counted_once
from experiments.engine import distinct
from experiments.registry import Entry, entries
from experiments.report.images import Image, drawn
from experiments.store import Store, canonical
from experiments.studies import studies
from experiments.study import Claim, Job, Kind, Page, Picture, Record, Records, State

PENDING = "not run yet"
"""In place of a claim's state, while some of its runs are not done."""
STATES: tuple[str, ...] = (*get_args(State), PENDING)


@dataclass(frozen=True)
class Section:
    """One label of the paper.

    Args:
        entry: what the paper has.
        page: what is read off the records; `None` if no study reproduces it at the scale.
        jobs: all the work of it that is known by now.
        done: how much of that has been carried out.
    """

    entry: Entry
    page: Page | None
    jobs: Sequence[Job] = ()
    done: int = 0

    @property
    def progress(self) -> str:
        """The progress of the label's runs in words."""
        if self.page is None:
            return "there is no design for it at this scale"
        if not self.jobs:
            return "counted or modelled, nothing is run"
        return f"{self.done} of {len(self.jobs)} runs done"


@dataclass(frozen=True)
class Configuration:
    """Runs that differ in their seed alone; those that tune a rate stand apart.

    Args:
        anchor: its place in the page.
        title: for people.
        settings: what tells it from others.
        runs: records by seed; `None` if a run is not done.
    """

    anchor: str
    title: str
    settings: Mapping[str, Any]
    runs: Mapping[int, Record | None]

    @property
    def done(self) -> list[Record]:
        return [record for record in self.runs.values() if record is not None]


@dataclass(frozen=True)
class Content:
    """The whole content of a report.

    Args:
        scale: the name of the scale.
        tunes: whether baselines have tuned learning rates, once those are known.
        sections: in the paper's order.
        configurations: by anchor.
        origins: where and when records were made, as far as they say so.
    """

    scale: str
    tunes: bool
    sections: Sequence[Section]
    configurations: Mapping[str, Configuration]
    origins: Mapping[str, Sequence[str]]
    _images: dict[int, Image] = field(default_factory=dict)

    @staticmethod
    def of(store: Store) -> Content:
        """The content from all records in a store."""
        pages = judged_pages(store)
        sections = [section(one, store, pages) for one in entries().values()]
        jobs = distinct(job for one in sections for job in one.jobs)
        found = configurations(jobs, store)
        return Content(store.scale.name, store.scale.tunes, sections, found, store.origins)

    @cached_property
    def claims(self) -> list[tuple[Entry, Claim]]:
        pages = ((one.entry, one.page) for one in self.sections)
        return [(entry, claim) for entry, page in pages if page for claim in page.claims]

    def image(self, picture: Picture) -> Image | None:
        """A picture of a page, drawn once; `None` if none of the runs behind it is done."""
        behind = {anchor_of(job) for job in picture.jobs}
        if behind and not any(self.configurations[anchor].done for anchor in behind):
            return None
        if id(picture) not in self._images:
            self._images[id(picture)] = drawn(picture)
        return self._images[id(picture)]

    def state(self, claim: Claim) -> str:
        """What became of a claim; that not all of it is run yet is told apart."""
        known = all(self._record(job) is not None for job in claim.jobs)
        return claim.state if known else PENDING

    def _record(self, job: Job) -> Record | None:
        return self.configurations[anchor_of(job)].runs[_seed(job)]

    @property
    def counts(self) -> dict[str, int]:
        """The number of claims in each state."""
        counted = Counter(self.state(claim) for _, claim in self.claims)
        return {state: counted[state] for state in STATES}

    def of_kind(self, kind: Kind) -> list[tuple[Entry, Claim]]:
        """The claims with such evidence."""
        return [(entry, claim) for entry, claim in self.claims if claim.kind == kind]

    @property
    def runs(self) -> tuple[int, int]:
        """The number of finished runs, and of all runs."""
        kept = [record for one in self.configurations.values() for record in one.runs.values()]
        return sum(record is not None for record in kept), len(kept)


def judged_pages(records: Records) -> dict[str, Page]:
    """The pages by label of all studies that have a design at the scale.

    Their claims are judged together: corrected for their number within each family, and each piece
    of evidence counted once.
    """
    known = {k: one for k, one in studies().items() if records.scale.name in one.scales}
    pages = {label: study.page(records) for label, study in known.items()}
    everything = [claim for page in pages.values() for claim in page.claims]
    kept, again = counted_once(everything)
    places = {id(claim): label for label, page in pages.items() for claim in page.claims}
    found: dict[str, list[Claim]] = {label: [] for label in pages}
    for before, claim in zip(kept, corrected(kept), strict=True):
        found[places[id(before)]].append(claim)
    notes: dict[str, list[str]] = {label: [*page.notes] for label, page in pages.items()}
    for claim, first in again:
        name = entries()[places[id(first)]].name
        notes[places[id(claim)]].append(
            f"“{claim.sentence}” rests on the numbers of a claim of {name}, and is counted there."
        )
    return {
        label: replace(page, claims=found[label], notes=notes[label])
        for label, page in pages.items()
    }


def section(entry: Entry, store: Store, pages: Mapping[str, Page]) -> Section:
    """An entry with what its study says of the records."""
    if entry.label not in pages:
        return Section(entry, None)
    study, page = studies()[entry.label], pages[entry.label]
    known = study.jobs(store.scale) if study.whole is None else study.whole(store)
    jobs = distinct([*known, *study.later(store), *_behind(page)])
    done = sum(store.of(job) is not None for job in jobs)
    return Section(entry, page, jobs, done)


def _behind(page: Page) -> Iterable[Job]:
    """The work that a page refers to."""
    for table in page.tables:
        for row in table.jobs:
            yield from row
    for one in (*page.pictures, *page.claims):
        yield from one.jobs


def configurations(jobs: Iterable[Job], records: Records) -> dict[str, Configuration]:
    """Jobs joined where their keys differ in the seed alone."""
    found: dict[str, Configuration] = {}
    for job in jobs:
        anchor = anchor_of(job)
        runs = dict(found[anchor].runs) if anchor in found else {}
        runs[_seed(job)] = records.of(job)
        found[anchor] = Configuration(anchor, _title(job), _settings(job), runs)
    return found


def anchor_of(job: Job) -> str:
    """The HTML anchor of the configuration that a job belongs to."""
    return "runs-" + hashlib.sha256(canonical(_settings(job)).encode()).hexdigest()[:10]


def _seed(job: Job) -> int:
    return job.key.get("seed", 0)


def _settings(job: Job) -> dict[str, Any]:
    """What runs of one configuration have in common; a run that tunes is one of its own."""
    tunes = _seed(job) == tuning.SEED
    return {name: value for name, value in job.key.items() if tunes or name != "seed"}


def _title(job: Job) -> str:
    title = re.sub(r", seed \d+$", "", job.title)
    return f"{title}, to tune the rate" if _seed(job) == tuning.SEED else title
