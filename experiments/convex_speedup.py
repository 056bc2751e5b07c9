"""fig:convex_speedup: speed-up over the number of workers, B = 16.

    python -m experiments.convex_speedup [--seeds 5] [--data w8a] [--data-dir ...] [--out ...]

Interrupt it at will: runs are kept, and a second call goes on where the first stopped.
"""

from __future__ import annotations

from experiments import markdown
from experiments.convex import claims, designs, figures, report
from experiments.convex.command import Options, command
from experiments.convex.study import find_all
from experiments.convex.tables import cell, spread, times, worker_counts


def run(options: Options) -> None:
    """Searches, then draws the figure and writes the page."""
    bench = options.bench()
    store = options.store()
    seeds = options.seeds or designs.FIGURE_SEEDS
    found = find_all(bench, designs.speedup_figure(seeds, options.thin), store)
    price = [options.communication]
    tables = {bench.words(name): times(found, i, price) for i, name in enumerate(bench.targets)}
    figures.speedup_figure(tables, options.path("speedup", "png"))
    parts = [
        f"# Speed-up over workers, B = 16, {bench.name}",
        report.preamble(bench, found, f"{options.communication:g}"),
        "The speed-up is over one worker with H = 1, whose syncs are charged like all others; "
        "another baseline moves all lines by one factor.",
        report.heading(bench),
        report.claims({name: claims.of_speedup(table) for name, table in tables.items()}),
    ]
    for name, table in tables.items():
        base = table[cell(1, 16, 1)].mean()
        speedups = {where: base / one for where, one in table.items()}
        advantages = [
            [str(workers), spread(claims.advantage(table, workers))]
            for workers in worker_counts(table)
        ]
        parts += [
            f"## Speed-up, {name}",
            report.grid(speedups, highest=True),
            f"## How many times faster H = 16 is than H = 1, {name}",
            markdown.table(["K", "T(H = 1) / T(H = 16)"], advantages),
        ]
    parts += ["## What was run", report.effort(bench, found, store)]
    options.path("speedup", "md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    command(run)
