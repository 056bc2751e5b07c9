"""K = 16 workers in one process against one worker on the same number of samples.

A turn is one step of each of the 16 and the sync of their models, which is due after every
step (the most that can be asked of hosting), or 16 steps of the one worker.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import partial

import torch

from benchmarks import crew
from benchmarks.report import Finding, publish, timed
from benchmarks.timing import Times, take_turns, turn_seconds
from benchmarks.workloads import advance, assembled, random_cifar

WORKERS = 16
CASES = (("resnet20", 32), ("small-cnn", 32), ("small-cnn", 128))
BOUND = 1.1
SECONDS = 35.0


def timed_here(model: str, batch: int, seconds: float) -> list[Finding]:
    task = random_cifar()
    one = assembled(task, model, batch, topology="1", method="mini-batch")
    many = assembled(
        task, model, batch, topology=str(WORKERS), method="mini-batch", average="models"
    )
    actions = {
        "1 worker": partial(advance, one, WORKERS),
        f"{WORKERS} workers": partial(advance, many, 1),
    }
    times = take_turns(actions, max(5, int(seconds / turn_seconds(actions))))
    bounds = {f"{WORKERS} workers": BOUND}
    found = timed(f"{model}, B = {batch}", times, "1 worker", bounds)
    return [_with_pace(finding, times[finding.contestant], WORKERS * batch) for finding in found]


def measure(seconds: float = SECONDS) -> list[Finding]:
    """Findings of all cases, in about so many seconds each."""
    return [
        found for model, batch in CASES for found in crew.run(1, timed_here, model, batch, seconds)
    ]


def _with_pace(finding: Finding, times: Times, samples: int) -> Finding:
    pace = samples / statistics.median(times.wall)
    cells = {**finding.cells, "samples/s": f"{pace:,.0f}"}
    figures = {**finding.figures, "samples_per_second": round(pace, 1)}
    return replace(finding, cells=cells, figures=figures)


def main(share: float = 1.0) -> bool:
    torch.set_num_threads(1)
    title = f"{WORKERS} workers in one process, averaging after every step"
    return publish("hosting", title, measure(share * SECONDS))


if __name__ == "__main__":
    main()
