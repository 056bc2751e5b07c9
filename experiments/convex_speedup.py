"""fig:convex_speedup: speed-up over the number of workers, B = 16.

    python -m experiments.convex_speedup [--seeds 3] [--data w8a] [--data-dir ...] [--out ...]

Interrupt it at will: runs are kept, and a second call goes on where the first stopped.
"""

from __future__ import annotations

from experiments.convex import claims, designs, figures, report
from experiments.convex.command import Options, command
from experiments.convex.study import Bench, find_all
from experiments.convex.tables import cell, markdown, spread, times


def run(options: Options) -> None:
    """Searches, then draws the figure and writes the page."""
    bench = Bench.load(options.data, options.data_dir)
    store = options.store()
    found = find_all(bench, designs.speedup_figure(options.seeds), store)
    tables = {name: times(found, i) for i, name in enumerate(bench.targets)}
    figures.speedup_figure(tables, options.path("speedup", "png"))
    parts = [
        f"# Speed-up over workers, B = 16, {bench.name}",
        report.preamble(bench, found),
        "The speed-up is over one worker with H = 1, whose agreements are charged like all others; "
        "another baseline moves all lines by one factor.",
        "## Claims",
        report.claims({name: claims.of_speedup(table) for name, table in tables.items()}),
    ]
    for name, table in tables.items():
        base = table[cell(1, 16, 1)].mean()
        speedups = {where: base / one for where, one in table.items()}
        advantages = [
            [str(workers), spread(claims.advantage(table, workers))] for workers in designs.POWERS
        ]
        parts += [
            f"## Speed-up, {report.TARGETS[name]}",
            report.grid(speedups, designs.POWERS, [16], designs.LOCAL_STEPS, highest=True),
            f"## How many times faster H = 16 is than H = 1, {report.TARGETS[name]}",
            markdown(["K", "T(H = 1) / T(H = 16)"], advantages),
        ]
    parts += ["## What was run", report.effort(bench, found, store)]
    options.path("speedup", "md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    command(run)
