"""The page of a figure: claims, tables, what was run and at what cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from experiments import markdown
from experiments.convex.claims import Claim
from experiments.convex.search import Found
from experiments.convex.setup import Setup
from experiments.convex.store import Store
from experiments.convex.study import COMMUNICATION, PAPER_MINIMUM, Bench, config
from experiments.convex.tables import (
    Cell,
    Table,
    batches,
    cell,
    cell_of,
    local_steps_of,
    size_of,
    spread,
    worker_counts,
)


def heading(bench: Bench) -> str:
    """The title of the claims; on other data they are a question of ours, not the paper's."""
    return "## Claims" if bench.name in PAPER_MINIMUM else "## What the paper claims of w8a, here"


def claims(by_target: Mapping[str, Sequence[Claim]]) -> str:
    """Claims with their verdicts, for the targets (in words) side by side."""
    header = ["claim", *(f"{t}: {what}" for t in by_target for what in ("verdict", "evidence"))]
    rows = []
    for same in zip(*by_target.values(), strict=True):
        rows.append([same[0].text, *(t for claim in same for t in (claim.verdict, claim.evidence))])
    return markdown.table(header, rows)


def grid(table: Table, highest: bool = False) -> str:
    """A row for each B (or K), a column for each H; the lowest, or highest, of a row in bold."""
    all_k, all_b, all_h = worker_counts(table), batches(table), local_steps_of(table)
    along_batch = len(all_b) > 1
    rows = []
    for a in all_b if along_batch else all_k:
        where = [cell(all_k[0], a, h) if along_batch else cell(a, all_b[0], h) for h in all_h]
        means = [table[one].mean() for one in where]
        shown = [spread(table[one], 1 if table[one].mean() > 99 else 2) for one in where]
        best = int(np.argmax(means) if highest else np.argmin(means))
        shown[best] = f"**{shown[best]}**"
        rows.append([str(a), *shown])
    return markdown.table(["B" if along_batch else "K", *(f"H = {h}" for h in all_h)], rows)


def rounds(found: Mapping[Setup, Found], target: int, cells: Sequence[Cell]) -> str:
    """Rounds, best step size and deciding iterate of some cells, seed by seed."""
    rows = []
    for where in cells:
        for setup, one in found.items():
            if cell_of(setup) == where:
                best = one.best[target]
                iterate = "average" if best.reached.by_average else "last"
                count = str(best.reached.syncs[-1])
                name = f"K = {where.workers}, B = {where.batch}, {where.method}"
                rows.append([name, str(setup.seed), count, size_of(best), iterate, str(one.runs)])
    return markdown.table(["configuration", "seed", "rounds", "step size", "iterate", "runs"], rows)


def effort(
    bench: Bench,
    found: Mapping[Setup, Found],
    store: Store,
    factors: Sequence[float] = (COMMUNICATION,),
) -> str:
    """How much was run, and how often each family and iterate won."""
    seconds = sum(store.seconds(config(bench, setup, factors)) for setup in found)
    runs = [one.runs for one in found.values()]
    true = list(bench.targets).index("true")
    best = [one.best[true] for one in found.values()]
    families = Counter(one.size.family for one in best)
    averages = sum(one.reached.by_average for one in best)
    return (
        f"{len(found)} searches took {sum(runs)} runs ({min(runs)} to {max(runs)} each) and "
        f"{seconds:.0f} s of one CPU core. For the true target the constant step size was best in "
        f"{families['constant']} of them, the decaying one in {families['decaying']}; the target "
        f"was reached by the weighted average in {averages}, by the last model in "
        f"{len(best) - averages}."
    )


def preamble(bench: Bench, found: Mapping[Setup, Found], price: str) -> str:
    """What the numbers mean, where a sync costs `price` gradients."""
    seeds = len({setup.seed for setup in found})
    spread_over = (
        f"{seeds} seeds, ± is the standard deviation over them." if seeds > 1 else "One seed."
    )
    targets = ", ".join(f"{bench.words(n)} = {value:.12f}" for n, value in bench.targets.items())
    return (
        f"Data set {bench.name}, f* = {bench.minimum.value:.15f} (gradient norm "
        f"{bench.minimum.gradient_norm:.0e}). Targets: {targets}. {spread_over} Time is in "
        f"gradients along the critical path: B for a local step, {price} for each sync."
    )
