"""The verdicts on the paper's claims on accuracy, at every scale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.claims import OPEN
from experiments.families import FAMILIES
from experiments.report.content import PENDING, Content
from experiments.scales import SCALES, scale_of
from experiments.store import Store
from experiments.study import ScaleName
from localsgd.basics.paired import LEAST_SEEDS

SHOWN, AGAINST = "reproduced", "not reproduced"
UNPLANNED = "not decidable as planned"
"""The runs are done, and can decide nothing: too few seeds, or a baseline that is not tuned."""


@dataclass(frozen=True)
class Tally:
    """Claims on accuracy, by scale and family.

    Args:
        counts: states by scale, then by family.
    """

    counts: Mapping[str, Mapping[str, Counter[str]]] = field(default_factory=dict)

    @staticmethod
    def of(content: Content, folder: Path) -> Tally:
        """The tally of this scale, and of others that have records in `folder`."""
        found: dict[str, Mapping[str, Counter[str]]] = {}
        for name in _scales(content, folder):
            own = content
            if name != content.scale:
                own = Content.of(Store(scale_of(name, tunes=content.tunes), folder))
            found[name] = _by_family(own)
        return Tally(found)

    @property
    def sentences(self) -> Sequence[str]:
        """A sentence for each scale, and sentences on what no scale shows."""
        said = [_sentence(name, sum(by.values(), Counter())) for name, by in self.counts.items()]
        missing = [name for name in SCALES if name not in ("smoke", *self.counts)]
        if missing:
            said.append(
                f"Nothing has been run at the scale{'s' * (len(missing) > 1)} "
                f"{' and '.join(missing)}."
            )
        return said

    @property
    def headings(self) -> list[str]:
        return ["claims on accuracy", *(f"at the {name} scale" for name in self.counts)]

    @property
    def rows(self) -> list[list[str]]:
        """A row for each family, in the order of `families.py`."""
        names = [name for name, one in FAMILIES.items() if one.accuracy]
        return [
            [FAMILIES[name].title, *(_cell(by.get(name, Counter())) for by in self.counts.values())]
            for name in names
        ]


def reasons(scale: str) -> list[tuple[str, str]]:
    """Why a scale can or can't show a family's claims, by the family's title."""
    return [(one.title, one.why[scale]) for one in FAMILIES.values() if scale in one.why]


def _scales(content: Content, folder: Path) -> list[ScaleName]:
    return [
        name
        for name in SCALES
        if name == content.scale or (name != "smoke" and any((folder / name).glob("*.jsonl")))
    ]


def _by_family(content: Content) -> Mapping[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for _, claim in content.of_kind("measured"):
        if FAMILIES[claim.family].accuracy:
            state = content.state(claim)
            state = UNPLANNED if claim.reservation and state != PENDING else state
            found.setdefault(claim.family, Counter())[state] += 1
    return found


def _sentence(scale: str, counts: Counter[str]) -> str:
    of = f"Of the paper's {counts.total()} claims on accuracy as they are put at the {scale} scale"
    if counts[PENDING] == counts.total():
        return f"{of}, none has all its runs yet."
    return (
        f"{of}, "
        f"{_are(counts[SHOWN], 'was', 'were')} shown and {counts[AGAINST]} came out the other way; "
        f"{_are(counts[OPEN])} open after all runs, {counts[UNPLANNED]} cannot be decided as "
        f"planned (fewer than {LEAST_SEEDS} seeds, or a baseline that is not tuned), and "
        f"{_are(counts[PENDING])} not run."
    )


def _are(number: int, one: str = "is", several: str = "are") -> str:
    return f"{number} {one if number == 1 else several}"


def _cell(counts: Counter[str]) -> str:
    if not counts:
        return "–"
    parts = [
        (counts[SHOWN], "shown"),
        (counts[AGAINST], "the other way"),
        (counts[OPEN], "open"),
        (counts[UNPLANNED], UNPLANNED),
        (counts[PENDING], PENDING),
    ]
    return ", ".join(f"{number} {words}" for number, words in parts if number)
