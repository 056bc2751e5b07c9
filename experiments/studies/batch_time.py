"""Seconds of a step of ResNet-20 by the batch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.claims import conclude
from experiments.markdown import spread
from experiments.measured import StepTime, device
from experiments.registry import entry
from experiments.study import Cell, Claim, Page, Picture, Record, Records, Scale, Study, Table
from localsgd.landscape.figures.style import COLOURS, legend, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABEL = "tab:single_worker_training_time_for_different_mini_batch_size"
BATCHES = {
    "smoke": (2, 4, 8),
    "small": (32, 64, 128, 256, 512, 1024, 2048),
    "paper": (32, 64, 128, 256, 512, 1024, 2048, 4096),
}
REPEATS = {"smoke": 2, "small": 5, "paper": 100}
SAMPLES = 4096
ROUNDED = 0.01
"""Rounding error of a ratio: seconds have milliseconds, and the smallest is 0.028."""

ON_A_CPU = "the paper's sentence is about GPUs, which larger batches keep busier; this is one core"


def jobs(scale: Scale) -> list[StepTime]:
    return [
        StepTime("resnet20", "cifar10", batch, REPEATS[scale.name]) for batch in BATCHES[scale.name]
    ]


def page(records: Records) -> Page:
    by = {job: records.of(job) for job in jobs(records.scale)}
    return Page(
        tables=[_ours(by), _paper()],
        pictures=[Picture("ratio", TITLE, lambda: _draw(by), [*by])],
        claims=[_larger(by, records), _ratios()],
        notes=NOTES,
    )


def per_sample(job: StepTime, record: Record) -> list[float]:
    return [seconds / job.batch for seconds in record["times"]]


def _ours(by: dict[StepTime, Record | None]) -> Table:
    last = [*by][-1]
    largest = by[last]
    rows: list[list[Cell]] = []
    for job, record in by.items():
        if record is None:
            rows.append([job.batch, None, None, None])
            continue
        mean = statistics.fmean(record["times"])
        ratio = None
        if largest is not None:
            ratio = f"{mean / job.batch / statistics.fmean(per_sample(last, largest)):.3f}"
        rows.append([job.batch, spread(record["times"], ".3f"), ratio, len(record["times"])])
    headings = ("B", "seconds", f"ratio, to B = {last.batch}", "repeats")
    title = f"A step of ResNet-20 here ({device().type.upper()})"
    return Table(title, headings, rows, [[job] for job in by])


def _paper() -> Table:
    rows = [
        [row["device"], row["batch"], row["seconds"], round(_recomputed(row), 3), row["ratio"]]
        for row in entry("batch-time").values
    ]
    return Table(
        "The paper's GPUs",
        ("device", "B", "paper's seconds", "ratio, recomputed", "paper's ratio"),
        rows,
    )


def _recomputed(row: dict) -> float:
    """The time of 4,096 samples in batches of B relative to one batch, from the paper's seconds."""
    (whole,) = (
        other["seconds"]
        for other in entry("batch-time").values
        if other["device"] == row["device"] and other["batch"] == SAMPLES
    )
    return SAMPLES / row["batch"] * row["seconds"] / whole


def _larger(by: dict[StepTime, Record | None], records: Records) -> Claim:
    first, *_, last = by
    sentence = f"A sample takes longer in a batch of {first.batch} than in one of {last.batch}."
    small, large = by[first], by[last]
    differences: list[float] = []
    if small is not None and large is not None:
        base = statistics.fmean(per_sample(last, large))
        pairs = zip(per_sample(first, small), per_sample(last, large), strict=True)
        differences = [(few - many) / base for few, many in pairs]
    return conclude(
        records,
        sentence,
        "appendix A.5",
        differences,
        "relative difference over repeats",
        [first, last],
        family="time",
        least=0.05,
        reservation="" if first.key["device"] != "cpu" else ON_A_CPU,
        seeds=first.repeats,
    )


def _ratios() -> Claim:
    rows = entry("batch-time").values
    off = [abs(_recomputed(row) / row["ratio"] - 1) for row in rows]
    return Claim(
        "The paper's ratios follow from its seconds.",
        "ours, of the table",
        "consistent" if max(off) <= ROUNDED + 0.5 / 28 else "not consistent",
        f"computed: {100 * max(off):.2f} % off at most in {len(off)} rows",
        kind="computed",
        family="counts",
    )


def _draw(by: dict[StepTime, Record | None]) -> Figure:
    figure, (axes,) = panels()
    rows = entry("batch-time").values
    for index, name in enumerate(dict.fromkeys(row["device"] for row in rows)):
        own = [row for row in rows if row["device"] == name]
        x, y = [row["batch"] for row in own], [row["ratio"] for row in own]
        axes.plot(x, y, "o--", ms=3, lw=1, color=COLOURS[index + 1], label=f"{name} (paper)")
    done = {job: record for job, record in by.items() if record is not None}
    if done:
        times = [_mean(job, record) for job, record in done.items()]
        x, y = [job.batch for job in done], [one / times[-1] for one in times]
        axes.plot(x, y, "o-", ms=4, color=COLOURS[0], label=f"{device().type.upper()}, here")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="batch B", ylabel="time a sample, to the largest batch")
    legend(axes)
    return figure


def _mean(job: StepTime, record: Record) -> float:
    return statistics.fmean(per_sample(job, record))


TITLE = "Time a sample by the batch, relative to the largest batch"
NOTES: Sequence[str] = (
    "Measured here on one core, or on the GPU where there is one. A core is busy with a single "
    "sample; it has little to gain from a larger batch, and loses once a batch leaves its caches.",
)
STUDY = Study(LABEL, jobs, page)
