"""Times of a figure, from the runs that are kept.

K: workers · B: rows of a worker's batch · H: local steps · s: seeds
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from experiments import markdown
from experiments.convex.race import Reached
from experiments.convex.search import Best, Found
from experiments.convex.setup import Setup
from experiments.convex.stepsizes import Family
from experiments.convex.study import COMMUNICATION, critical_path
from experiments.logistic.rows import Floats


@dataclass(frozen=True, order=True)
class Cell:
    """A point of a figure: a configuration without its seed."""

    workers: int
    batch: int
    method: str
    """The schedules, such as `every(4)`."""

    @property
    def local_steps(self) -> int:
        """H, of local SGD."""
        return int(self.method.removeprefix("every(").removesuffix(")"))


Table: TypeAlias = Mapping[Cell, Floats]
"""Times in gradients by cell, [s], in the order of the seeds."""


def cell(workers: int, batch: int, local_steps: int) -> Cell:
    """The cell of local SGD with H = `local_steps`."""
    return Cell(workers, batch, f"every({local_steps})")


def cell_of(setup: Setup) -> Cell:
    """The cell of a configuration; it is the same for all seeds."""
    return Cell(setup.workers, setup.batch, setup.label)


def batches(table: Table) -> list[int]:
    """All B of a table, ascending."""
    return sorted({where.batch for where in table})


def worker_counts(table: Table) -> list[int]:
    """All K of a table, ascending."""
    return sorted({where.workers for where in table})


def local_steps_of(table: Table) -> list[int]:
    """All H of a table of local SGD, ascending."""
    return sorted({where.local_steps for where in table})


def times(
    found: Mapping[Setup, Found],
    target: int,
    factors: Sequence[float] = (COMMUNICATION,),
    family: Family | None = None,
) -> dict[Cell, Floats]:
    """Time along the critical path of the best step size.

    Args:
        found: what was searched.
        target: which target, by number.
        factors: gradients that a sync costs: of one level, or of each level, innermost first;
            a setup with one level takes the last.
        family: the best of this one alone; cells where it was given up in some seed are left out.
    """
    cells: dict[Cell, list[tuple[int, float]]] = defaultdict(list)
    for setup, one in found.items():
        best = one.best[target]
        where = cell_of(setup)
        if family is None:
            cells[where].append((setup.seed, _time(setup, best.reached, factors)))
        elif family in best.by_family:
            cells[where].append((setup.seed, _time(setup, best.by_family[family][1], factors)))
        else:
            cells[where].append((setup.seed, np.nan))
    table = {where: np.array([time for _, time in sorted(all_)]) for where, all_ in cells.items()}
    return {where: one for where, one in table.items() if np.isfinite(one).all()}


def _time(setup: Setup, reached: Reached, factors: Sequence[float]) -> float:
    own = factors[-setup.levels :]
    return critical_path(reached.steps, reached.syncs, setup.batch, own)


def relative(table: Table) -> dict[Cell, Floats]:
    """Times divided by the mean time of the fastest cell."""
    best = min(float(np.mean(one)) for one in table.values())
    return {where: one / best for where, one in table.items()}


def fastest(table: Table) -> Cell:
    """The cell with the lowest mean time."""
    return min(table, key=lambda where: (float(np.mean(table[where])), where))


def spread(values: Floats, digits: int = 2) -> str:
    """Mean and standard deviation over seeds, as `1.23 ± 0.04`; the mean alone for one seed."""
    return markdown.spread(values.tolist(), f".{digits}f")


def size_of(best: Best) -> str:
    """A step size in words: `32·2^1` or `min(32, 2^-3 n/(t+1))`."""
    power = f"2^{best.size.exponent}"
    return f"32·{power}" if best.size.family == "constant" else f"min(32, {power} n/(t+1))"
