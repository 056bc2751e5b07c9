"""Seconds of an all-reduce by the number of cores: measured over loopback, modelled beyond."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from experiments.claims import OPEN, conclude
from experiments.markdown import spread
from experiments.measured import AllReduceTime
from experiments.study import (
    Cell,
    Claim,
    Page,
    Picture,
    Record,
    Records,
    Scale,
    Study,
    Table,
)
from localsgd.cost.allreduce import ALGORITHMS, Link
from localsgd.landscape.figures.style import COLOURS, legend, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABEL = "fig:cost_of_allreduce_for_cpus"
BYTES = {"smoke": 1_000_000, "small": 100_000_000, "paper": 100_000_000}
PROCESSES = {"smoke": (1, 2), "small": (1, 2, 3, 4), "paper": (1, 2, 4, 8, 16, 32, 48)}
REPEATS = {"smoke": 3, "small": 20, "paper": 100}
MODELLED = (1, 2, 4, 8, 16, 48, 96, 192, 1024)
MB100, RATE, LATENCY = 100e6, 10e9, 50e-6
Times = dict[AllReduceTime, Record | None]


def jobs(scale: Scale) -> list[AllReduceTime]:
    name = scale.name
    return [AllReduceTime(count, BYTES[name], REPEATS[name]) for count in PROCESSES[name]]


def page(records: Records) -> Page:
    by = {job: records.of(job) for job in jobs(records.scale)}
    return Page(
        tables=[_measured(by), _modelled()],
        pictures=[Picture("seconds", TITLE, lambda: _draw(by), [*by])],
        claims=[_grows(by, records)],
        notes=NOTES,
    )


def _measured(by: Times) -> Table:
    rows: list[list[Cell]] = []
    for job, record in by.items():
        cell = None if record is None else spread(record["times"], ".4f")
        rows.append([job.processes, cell, job.repeats])
    title = f"An all-reduce of {next(iter(by)).bytes / 1e6:g} MB here, over loopback"
    return Table(title, ("processes", "seconds", "repeats"), rows, [[job] for job in by])


def modelled(workers: int) -> dict[str, float]:
    """Seconds by algorithm."""
    link = Link.of_rate(RATE, LATENCY)
    return {name: make(workers, MB100).seconds(link) for name, make in ALGORITHMS.items()}


def _modelled() -> Table:
    rows = [[k, *(round(one, 3) for one in modelled(k).values())] for k in MODELLED]
    headings = ("workers", *(f"{name}, s" for name in ALGORITHMS))
    title = "An all-reduce of 100 MB over 10 Gbit/s and 50 microseconds a message (modelled)"
    return Table(title, headings, rows)


def _grows(by: Times, records: Records) -> Claim:
    """Between the fewest and the most processes that have a core each. A record's cores are part
    of its key: those of another machine are not among these.
    """
    sentence, place = "An all-reduce takes longer the more cores take part.", "appendix A.5"
    several = [job for job in by if job.processes > 1]
    cores = several[0].key["cores"]
    apart = [job for job in several if job.processes <= cores]
    if len(apart) < 2:
        reason = f"{cores} cores here, which more processes share: that says nothing of more cores"
        return Claim(sentence, place, OPEN, reason, reservation=reason, family="time")
    first, last = apart[0], apart[-1]
    few, many = by[first], by[last]
    differences: list[float] = []
    if few is not None and many is not None:
        differences = [b - a for a, b in zip(few["times"], many["times"], strict=True)]
    return conclude(
        records,
        sentence,
        place,
        differences,
        f"{last.processes} less {first.processes} processes, repeats",
        [first, last],
        family="time",
        unit=" s",
        seeds=first.repeats,
    )


def _draw(by: Times) -> Figure:
    figure, (axes,) = panels()
    for index, name in enumerate(ALGORITHMS):
        times = [modelled(k)[name] for k in MODELLED]
        axes.plot(
            MODELLED[1:], times[1:], "--", lw=1, color=COLOURS[index + 1], label=f"{name}, modelled"
        )
    done = {job.processes: record["times"] for job, record in by.items() if record is not None}
    if done:
        means = [statistics.fmean(times) for times in done.values()]
        axes.plot([*done], means, "o-", ms=4, color=COLOURS[0], label="measured here, loopback")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="cores or workers", ylabel="seconds")
    legend(axes)
    return figure


TITLE = "Seconds of an all-reduce by the number of cores: measured here, and modelled for 10 Gbit/s"
NOTES = (
    "The paper's picture has no numbers beside it. It was measured by MPI on machines of 48 cores "
    "that 10 Gbit/s join; here processes of one machine pass bytes through its memory by gloo, and "
    "more processes than cores share them, so that these decide nothing.",
    "Lines of the model are no measurements.",
)
STUDY = Study(LABEL, jobs, page)
