"""A table or figure of the paper as values: the work it needs, and what is read off the records.

A module of `experiments/studies/` is one `Study`. It says at every scale which jobs it needs and
makes a page of tables, pictures and claims from their records; how jobs are carried out, kept,
shared between studies and spread over machines is not its concern.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from localsgd.basics.paired import Test

Record = Mapping[str, Any]
"""The result of one job: JSON, without the models."""
ScaleName = Literal["smoke", "small", "medium", "paper"]
Kind = Literal["measured", "computed", "modelled"]
"""Trained or timed here · counted, or computed from the paper's own numbers: consistency, no
reproduction · on a clock that is fitted to the paper's minutes."""
State = Literal[
    "reproduced",
    "not reproduced",
    "not decidable at this scale",
    "consistent",
    "not consistent",
]
"""The last two are of what is computed or modelled."""
Cell = str | int | float | None


@dataclass(frozen=True)
class Scale:
    """How large the work is.

    Args:
        name: "smoke" takes seconds in all, "small" minutes on a CPU, "medium" days, "paper" is the
            paper's own.
        ground: settings of `localsgd.Run` that all training of this scale starts from.
        seeds: of every arm that says nothing else.
        main_seeds: of the arms that the paper's main claims are about.
        light: settings on top of the ground for studies of many runs: a lighter network.
        tunes: whether baselines get tuned learning rates, as the paper's.
        asked: seeds that a user has asked for, also where a study has a number of its own.
    """

    name: ScaleName
    ground: Mapping[str, Any]
    seeds: int
    main_seeds: int = 0
    light: Mapping[str, Any] = field(default_factory=dict)
    tunes: bool = False
    asked: int | None = None


class Job(Protocol):
    """Something to be done once; a frozen value that can be handed to another process."""

    @property
    def key(self) -> Mapping[str, Any]:
        """JSON that its record depends on: jobs of equal keys are one job.

        `kind` says what sort of work it is, `task` on which data if there is one; together they
        name the file of its record.
        """
        ...

    @property
    def title(self) -> str:
        """For people who watch it."""
        ...

    def carry_out(self, place: Workplace) -> Record: ...


class Workplace(Protocol):
    """The environment of jobs."""

    @property
    def data_dir(self) -> Path | None:
        """The folder of data sets; the usual folders if `None`."""
        ...

    @property
    def scratch(self) -> Path:
        """Checkpoints that several jobs go on from; nothing in it is kept with the results."""
        ...

    def once(self, job: Job, make: Callable[[], Record]) -> Record:
        """What is kept of a job by now, or what `make` makes of it, which is kept at once: whoever
        has waited for the job's folder finds it.
        """
        ...


class Records(Protocol):
    """The finished jobs of one study at one scale."""

    scale: Scale

    def of(self, job: Job) -> Record | None:
        """`None` if it has not been done."""
        ...


@dataclass(frozen=True)
class Table:
    """Rows under headings, with the paper's numbers in columns of their own.

    Args:
        title: what it shows.
        headings: of the columns.
        rows: as many cells in each; a cell of `None` is work not done yet.
        jobs: the work behind each row, by row; none if a row is counted or modelled.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    jobs: Sequence[Sequence[Job]] = ()


@dataclass(frozen=True)
class Picture:
    """A figure, drawn when it is wanted.

    Args:
        name: of its file, without suffix; unique in the study.
        title: what it shows, also for those who cannot see it.
        draw: makes it.
        jobs: the work behind it.
    """

    name: str
    title: str
    draw: Callable[[], Figure]
    jobs: Sequence[Job] = ()


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and what became of it.

    Args:
        sentence: what is claimed, in our words.
        place: where in the paper.
        state: what the evidence says at this scale.
        evidence: the figures: mean, interval, how many seeds.
        jobs: the work behind it.
        reservation: why the figures decide nothing, whatever they are; empty where they do.
        kind: what the evidence is.
        family: of `experiments/families.py`; claims of one are corrected together.
        test: the differences that decide; `None` if there are none, or not yet.
        subject: what they are of: of equal ones, one claim is counted.
    """

    sentence: str
    place: str
    state: State
    evidence: str
    jobs: Sequence[Job] = ()
    reservation: str = ""
    kind: Kind = "measured"
    family: str = ""
    test: Test | None = None
    subject: Hashable = None


@dataclass(frozen=True)
class Page:
    """What a study has to say."""

    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()
    """Differences between its setting and the paper's, and their meaning."""


def _nothing(records: Records) -> Sequence[Job]:
    return ()


@dataclass(frozen=True)
class Study:
    """One label of the paper.

    Args:
        label: as in `paper.toml`.
        jobs: the work at a scale, the most wanted first; none if everything is counted.
        page: what is read off the records that there are, complete or not.
        later: more work that follows from what has been found, done or not; asked again whenever
            all of it is done.
        scales: at which it has a design.
        whole: all work at a scale, as far as it is known by now, where `jobs` are only its first
            part: for forecasts and for what is done of it.
        designed: the scales at which the number of its seeds is part of its design.
    """

    label: str
    jobs: Callable[[Scale], Sequence[Job]]
    page: Callable[[Records], Page]
    later: Callable[[Records], Sequence[Job]] = _nothing
    scales: tuple[ScaleName, ...] = ("smoke", "small", "paper")
    whole: Callable[[Records], Sequence[Job]] | None = None
    designed: tuple[ScaleName, ...] = ()
