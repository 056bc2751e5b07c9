"""Maps of the best (H, B); they are not in the paper.

    python -m experiments.convex.maps [--data w8a] [--seeds 3] ...

K = 16, H up to 256, B from 1 to 1024; a sync costs 1, 25 (or `--communication`) or 1000
gradients. The best step size of a configuration does not depend on that price, so that the maps
come from the same runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments import markdown
from experiments.convex import designs, figures, report
from experiments.convex.command import Options, command
from experiments.convex.study import find_all
from experiments.convex.tables import (
    Table,
    batches,
    cell,
    fastest,
    local_steps_of,
    relative,
    spread,
    times,
)

CHEAP, DEAR = 1.0, 1000.0


def run(options: Options) -> None:
    """Searches, then draws the maps and writes the page."""
    bench = options.bench()
    store = options.store()
    found = find_all(bench, designs.time_map(options.seeds or designs.SEEDS, options.thin), store)
    true = list(bench.targets).index("true")
    prices = sorted({CHEAP, options.communication, DEAR})
    tables = {price: times(found, true, [price]) for price in prices}
    titles = {f"a sync costs {factor:g}": table for factor, table in tables.items()}
    figures.map_figure(titles, options.path("map", "png"))
    parts = [
        f"# Where each (H, B) wins, K = 16, {bench.name}",
        report.preamble(bench, found, _either(prices)),
        "## The fastest",
        _winners(tables),
        "## The best H for each B",
        _best_steps(tables),
    ]
    for factor, table in tables.items():
        shown = report.grid(relative(table))
        parts += [f"## Time relative to the fastest, a sync costs {factor:g}", shown]
    parts += ["## What was run", report.effort(bench, found, store)]
    options.path("map", "md").write_text("\n\n".join(parts) + "\n")


def _either(prices: Sequence[float]) -> str:
    *others, last = (f"{price:g}" for price in prices)
    return f"{', '.join(others)} or {last}"


def _winners(tables: Mapping[float, Table]) -> str:
    """The fastest cell, and the fastest with H = 1, for each price."""
    rows = []
    for factor, table in tables.items():
        best = fastest(table)
        plain = min((w for w in table if w.method == "every(1)"), key=lambda w: table[w].mean())
        ratio = table[plain] / table[best]
        name = f"B = {best.batch}, {best.method}"
        rows.append(
            [f"{factor:g}", name, spread(table[best], 0), f"B = {plain.batch}", spread(ratio)]
        )
    header = ["price", "fastest", "its time", "fastest with H = 1", "times slower"]
    return markdown.table(header, rows)


def _best_steps(tables: Mapping[float, Table]) -> str:
    rows = [
        [str(batch), *(str(_best_h(table, batch)) for table in tables.values())]
        for batch in batches(next(iter(tables.values())))
    ]
    return markdown.table(["B", *(f"price {factor:g}" for factor in tables)], rows)


def _best_h(table: Table, batch: int) -> int:
    return min(local_steps_of(table), key=lambda h: float(table[cell(16, batch, h)].mean()))


if __name__ == "__main__":
    command(run)
