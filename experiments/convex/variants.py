"""Post-local, hierarchical (4 x 4) and quadratic schedules, K = 16: not in the paper.

    python -m experiments.convex.variants [--data w8a] [--seeds 3] ...

An agreement of all costs 25 gradients, one inside a block of four costs 1. One that the outer level
takes over is charged there alone. Local and mini-batch SGD are searched as in the first figure.
"""

from __future__ import annotations

import numpy as np

from experiments.convex import designs, figures, report
from experiments.convex.command import Options, command
from experiments.convex.setup import local
from experiments.convex.study import Bench, find_all
from experiments.convex.tables import Cell, Table, markdown, spread, times

FACTORS = (1.0, 25.0)


def run(options: Options) -> None:
    """Searches, then draws the figure and writes the page."""
    bench = Bench.load(options.data, options.data_dir)
    store = options.store()
    flat = [
        local(16, batch, local_steps, seed)
        for batch in designs.METHOD_BATCHES
        for local_steps in (1, 16)
        for seed in range(options.seeds)
    ]
    found = find_all(bench, [*flat, *designs.methods(options.seeds)], store)
    table = times(found, list(bench.targets).index("true"), FACTORS)
    lines = _lines(table)
    title = f"{bench.name}, K = 16, target f* + 0.005: agreements cost 25, inner ones 1"
    figures.methods_figure(lines, title, options.path("variants", "png"))
    best = min(float(one.mean()) for one in table.values())
    rows = []
    for label, by_batch in lines.items():
        shown = [spread(by_batch[batch] / best) for batch in designs.METHOD_BATCHES]
        rows.append([label, *shown])
    parts = [
        f"# Other schedules, K = 16, {bench.name}",
        report.preamble(bench, found),
        "An agreement inside a block of four costs 1.",
        "## Time relative to the fastest",
        markdown(["schedule", *(f"B = {batch}" for batch in designs.METHOD_BATCHES)], rows),
        "## What was run",
        report.effort(bench, found, store),
    ]
    options.path("variants", "md").write_text("\n\n".join(parts) + "\n")


def _lines(table: Table) -> dict[str, dict[int, np.ndarray]]:
    lines: dict[str, dict[int, np.ndarray]] = {}
    for where, values in table.items():
        lines.setdefault(_label(where), {})[where.batch] = values
    return dict(sorted(lines.items()))


def _label(where: Cell) -> str:
    parts = where.method.split(" every")
    if len(parts) == 2:
        return f"4x4: H = {parts[0][6:-1]}, H^b = {parts[1][1:-1]}"
    return where.method


if __name__ == "__main__":
    command(run)
