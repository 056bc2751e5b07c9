"""Local SGD with two workers: rounds, time and accuracy by H."""

from __future__ import annotations

import numpy as np

from experiments import clock, modelled
from experiments.arms import Arm, Row, claim, found, jobs_of, table
from experiments.pictures import learning_curves
from experiments.registry import entry
from experiments.studies.grids import LOCAL_STEPS, cell
from experiments.study import Page, Records, Scale, Study, Table

LABEL = "fig:cifar10_local_sgd_communication_efficiency"
WORKERS = 2


def arms(scale: Scale) -> dict[int, Arm]:
    """The arms by H; they are part of the grid over K and H."""
    return {h: cell(scale, WORKERS, h) for h in LOCAL_STEPS}


def page(records: Records) -> Page:
    by = arms(records.scale)
    rows = [Row((h,), one) for h, one in by.items()]
    (known,) = entry("two-workers").values
    return Page(
        tables=[
            table("Two workers", ("H",), rows, records, paper=()),
            _times(records, by, known["local_steps"], known["speedup_at_least"]),
        ],
        pictures=[
            learning_curves(
                "by-rounds",
                "Training loss and test accuracy by rounds",
                records,
                [*by.values()],
                against=_rounds(records),
                x_label="rounds",
            ),
            learning_curves(
                "by-time",
                "Training loss and test accuracy by modelled time",
                records,
                [*by.values()],
                against=_time(records),
                x_label="time (local steps, modelled)",
            ),
            learning_curves(
                "by-epoch", "Training loss and test accuracy by epoch", records, [*by.values()]
            ),
        ],
        claims=[
            *(
                claim(
                    records,
                    f"Local SGD with H = {h} and K = 2 is as accurate as H = 1, within 0.5 points.",
                    "appendix B.3.1",
                    by[h],
                    by[1],
                    margin=0.5,
                    family="local",
                )
                for h in LOCAL_STEPS[1:]
            ),
            modelled.faster(
                records,
                "H = 16 is at least 3 times as fast as H = 1 with K = 2.",
                "appendix B.3.1",
                by[16],
                by[1],
                WORKERS,
            ),
        ],
        notes=NOTES,
    )


def _times(records: Records, by: dict[int, Arm], paper_h: int, paper_factor: float) -> Table:
    rows = []
    for h in by:
        ratios = modelled.speedups(records, by[h], by[1], WORKERS)
        speedup = f"{sum(ratios) / len(ratios):.2f}" if ratios else None
        rows.append([h, speedup, f"at least {paper_factor:g}" if h == paper_h else ""])
    headings = ("H", "speed-up over H = 1 (modelled)", "paper")
    return Table("Time of a run", headings, rows, [one.jobs for one in by.values()])


def _per_epoch(records: Records, one: Arm, name: str) -> float:
    record = next(iter(found(records, one).values()))
    total = sum(record["syncs"]) if name == "syncs" else record["steps"]
    return total / record["curve"][-1][0]


def _rounds(records: Records):
    def against(one: Arm, epochs: np.ndarray) -> np.ndarray:
        return epochs * _per_epoch(records, one, "syncs")

    return against


def _time(records: Records):
    def against(one: Arm, epochs: np.ndarray) -> np.ndarray:
        steps = epochs * _per_epoch(records, one, "steps")
        return steps * clock.per_step(next(iter(found(records, one).values())), WORKERS)

    return against


NOTES = (
    clock.NOTE,
    "The paper's two GPUs stand in two nodes, whereas the price is taken from 8 nodes of two, and "
    "grows by log2 K: the model makes less of H here than the paper measured.",
    "Training accuracy by rounds is shown as training loss.",
)
STUDY = Study(LABEL, lambda scale: jobs_of([*arms(scale).values()]), page)
