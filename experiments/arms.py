"""Arms of studies over seeds, and numbers from their records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from experiments import markdown
from experiments.claims import claimed, conclude
from experiments.registry import entry
from experiments.study import Cell, Claim, Record, Records, Scale, Table
from experiments.training import TrainJob
from localsgd.basics.units import size
from localsgd.train.config.run import Run

UNTUNED = "the baseline's learning rate is not tuned here, and the paper's is"
LEAST = {"test_accuracy": 0.2, "train_accuracy": 0.5, "test_loss": 0.02, "test_perplexity": 1.0}
"""The smallest differences of interest, by outcome: the paper's own effects on accuracy begin at
0.3 points.
"""


@dataclass(frozen=True)
class Arm:
    """One way to train, over several seeds.

    Args:
        name: in tables and pictures.
        jobs: one for each seed, from 0.
        tuned: whether its learning rate has been tuned here.
    """

    name: str
    jobs: tuple[TrainJob, ...]
    tuned: bool = False

    @property
    def run(self) -> Run:
        """The arm's settings, with the first seed."""
        return self.jobs[0].run


def arm(
    scale: Scale,
    name: str,
    *,
    main: bool = False,
    light: bool = False,
    words: int | None = None,
    made: bool = False,
    **settings: Any,
) -> Arm:
    """An arm at a scale.

    Args:
        scale: gives the ground and the number of seeds.
        name: for people.
        main: whether it takes the seeds of main claims.
        light: whether it takes the lighter network, if the scale has one.
        words, made: of a text, as in `TrainJob`.
        settings: of `Run`, on top.
    """
    ground = {**scale.ground, **(scale.light if light else {}), **settings}
    seeds = scale.main_seeds if main else scale.seeds
    runs = (Run(**ground, seed=seed) for seed in range(seeds))
    return Arm(name, tuple(TrainJob(run, words, made) for run in runs))


def jobs_of(arms: Sequence[Arm]) -> list[TrainJob]:
    """The jobs arm by arm, the most important first."""
    return [job for one in arms for job in one.jobs]


def found(records: Records, one: Arm) -> dict[int, Record]:
    """The existing records, by seed."""
    pairs = ((job.run.seed, records.of(job)) for job in one.jobs)
    return {seed: record for seed, record in pairs if record is not None}


def is_diverged(record: Record) -> bool:
    """Whether the run has ended with a loss that is not finite: its accuracy is that of chance."""
    return record.get("test_loss", 0.0) is None


def values(records: Records, one: Arm, field: str) -> dict[int, float]:
    """A number of each finished run that has not diverged, by seed; accuracies in %."""
    factor = 100 if "accuracy" in field else 1
    kept = {
        seed: record.get(field)
        for seed, record in found(records, one).items()
        if not is_diverged(record)
    }
    return {seed: factor * value for seed, value in kept.items() if value is not None}


def spread(records: Records, one: Arm, field: str, digits: int = 2) -> Cell:
    """The mean over seeds and its deviation, `92.48 ± 0.17`; `None` without runs."""
    kept = list(values(records, one, field).values())
    return markdown.spread(kept, f".{digits}f") if kept else None


def seeds_done(records: Records, one: Arm) -> Cell:
    """The number of runs: `5`, or `3 of 5` while some are missing."""
    done, wanted = len(found(records, one)), len(one.jobs)
    return done if done == wanted else f"{done} of {wanted}"


def rounds(records: Records, one: Arm) -> Cell:
    """Syncs of all workers in a run, as counted."""
    kept = list(found(records, one).values())
    return " + ".join(map(str, kept[0]["syncs"])) if kept else None


def sent(records: Records, one: Arm) -> Cell:
    """The bytes that a worker sent in a run, at all levels together, as counted."""
    kept = list(found(records, one).values())
    return size(sum(kept[0]["bytes"])) if kept else None


@dataclass(frozen=True)
class Row:
    """One row of a table of arms: what tells it from the others, the arm, the paper's numbers."""

    cells: tuple[Cell, ...]
    arm: Arm
    paper: tuple[Cell, ...] = ()


def table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Row],
    records: Records,
    *,
    field: str = "test_accuracy",
    paper: Sequence[str] = ("paper",),
    fit: bool = True,
) -> Table:
    """Rows of arms: the result over seeds, rounds and bytes as counted, and the paper's numbers."""
    name = "test ppl." if field == "test_perplexity" else "test acc. (%)"
    measured = [name, *(["train acc. (%)"] if fit else []), "rounds", "sent", "seeds"]
    filled = []
    for row in rows:
        numbers = [spread(records, row.arm, field)]
        if fit:
            numbers.append(spread(records, row.arm, "train_accuracy"))
        counted = [op(records, row.arm) for op in (rounds, sent, seeds_done)]
        filled.append([*row.cells, *numbers, *counted, *row.paper])
    return Table(title, [*headings, *measured, *paper], filled, jobs=[row.arm.jobs for row in rows])


def published(name: str, column: str = "test_accuracy", **where: Any) -> Cell:
    """The paper's number in the only row of an entry with these values, with its deviation."""
    (row,) = [
        row for row in entry(name).values if all(row[key] == value for key, value in where.items())
    ]
    deviation = row.get("deviation") if column.startswith("test_") else None
    return row[column] if deviation is None else f"{row[column]:.2f} ± {deviation:.2f}"


def claim(
    records: Records,
    sentence: str,
    place: str,
    better: Arm,
    worse: Arm,
    *,
    family: str,
    sign: Literal[-1, 1] = 1,
    margin: float = 0.0,
    equal_within: float | None = None,
    field: str = "test_accuracy",
    paper_tunes: Sequence[Arm] = (),
    beside: Sequence[TrainJob] = (),
) -> Claim:
    """What paired differences over seeds say: that `better` - `worse` lies on the side `sign` of
    -`sign` * `margin`, or within `equal_within` of 0 if that is given.

    `paper_tunes` are those of the two whose rates the paper has tuned, where ours may suit one
    better than the other: unless they are tuned here too, nothing is decided. Post-local SGD and
    the mini-batch SGD that it goes on from have all but H in common, and are compared as they are.
    `beside` are other runs that the choice of the two rests on.
    """
    first, second = values(records, better, field), values(records, worse, field)
    differences = [first[seed] - second[seed] for seed in first if seed in second]
    pairs = min(len(better.jobs), len(worse.jobs))
    exact = bool(margin) or equal_within is not None
    return conclude(
        records,
        sentence,
        place,
        differences,
        f"{better.name} less {worse.name}",
        (*better.jobs, *worse.jobs, *beside),
        family=family,
        bounds=(-equal_within, equal_within) if equal_within else claimed(sign, margin),
        unit=" points" if "accuracy" in field else "",
        show=hundredths if "accuracy" in field else None,
        least=None if exact else LEAST[field],
        seeds=pairs,
        reservation="; ".join(untuned(paper_tunes)),
        subject=(frozenset((better.jobs, worse.jobs)), field),
    )


def hundredths(value: float) -> str:
    return f"{value:+.2f}"


def untuned(arms: Sequence[Arm]) -> list[str]:
    """The reservation about arms that the paper tunes; none if all are tuned here too."""
    return [] if all(one.tuned for one in arms) else [UNTUNED]
