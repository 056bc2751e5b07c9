"""fig:convex_time: time to the target over the local mini-batch, K = 16 workers.

    python -m experiments.convex_time [--seeds 5] [--data w8a] [--data-dir ...] [--out ...]

Interrupt it at will: runs are kept, and a second call goes on where the first stopped.
"""

from __future__ import annotations

from experiments import markdown
from experiments.convex import claims, designs, figures, report
from experiments.convex.command import Options, command
from experiments.convex.stepsizes import FAMILIES
from experiments.convex.study import find_all
from experiments.convex.tables import Cell, Table, cell, fastest, relative, spread, times

# The factor is the paper's choice, "for ease of illustration": what of the claims hangs on it?
FACTORS = (1.0, 5.0, 25.0, 125.0, 1000.0)


def run(options: Options) -> None:
    """Searches, then draws the figure and writes the page."""
    bench = options.bench()
    store = options.store()
    seeds = options.seeds or designs.FIGURE_SEEDS
    found = find_all(bench, designs.time_figure(seeds, options.thin), store)
    price = [options.communication]
    tables = {bench.words(name): times(found, i, price) for i, name in enumerate(bench.targets)}
    figures.time_figure(tables, options.path("time", "png"))

    index = list(bench.targets).index("true")
    readings = {f"a sync costs {f:g}": times(found, index, [f]) for f in FACTORS}
    readings |= {f"{f} step sizes alone": times(found, index, price, f) for f in FAMILIES}
    parts = [
        f"# Time to the target, K = 16, {bench.name}",
        report.preamble(bench, found, f"{options.communication:g}"),
        report.heading(bench),
        report.claims({name: claims.of_time(table) for name, table in tables.items()}),
        "## The same, read otherwise (true target)",
        markdown.table(
            ["", "T(64, 1) / T(16, 16)", "T(256, 1) / T(16, 16)", "fastest"],
            [[name, *_ratios(table)] for name, table in readings.items()],
        ),
    ]
    for name, table in tables.items():
        title = f"## Time relative to the fastest, {name}"
        shown = report.grid(relative(table))
        parts += [title, shown]
    named = [cell(16, 16, 16), cell(16, 64, 1), cell(16, 256, 1)]
    parts += [
        "## The three named configurations, true target",
        report.rounds(found, index, named),
        "## What was run",
        report.effort(bench, found, store),
    ]
    options.path("time", "md").write_text("\n\n".join(parts) + "\n")


def _ratios(table: Table) -> list[str]:
    best = fastest(table)
    ratios = [_ratio(table, cell(16, batch, 1), cell(16, 16, 16)) for batch in (64, 256)]
    return [*ratios, f"B = {best.batch}, {best.method}"]


def _ratio(table: Table, slow: Cell, fast: Cell) -> str:
    """A dash if one family of step sizes was given up."""
    return spread(table[slow] / table[fast]) if slow in table and fast in table else "-"


if __name__ == "__main__":
    command(run)
