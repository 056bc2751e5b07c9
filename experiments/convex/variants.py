"""Post-local, hierarchical (4 x 4) and quadratic schedules, K = 16: not in the paper.

    python -m experiments.convex.variants [--data w8a] [--seeds 3] ...

A sync of all costs 25 gradients, one inside a block of four costs 1. One that the outer level
takes over is charged there alone. Local and mini-batch SGD are searched as in the first figure.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from experiments import markdown
from experiments.convex import designs, figures, report
from experiments.convex.command import Options, command
from experiments.convex.figures import Lines
from experiments.convex.search import Found
from experiments.convex.setup import Qsr, Setup, local
from experiments.convex.study import find_all
from experiments.convex.tables import cell_of, relative, spread, times
from localsgd.schedule.fixed import Every, PostLocal

INNER = 1.0
FLAT = "local SGD"
FAMILIES = (FLAT, "post-local", "hierarchical, 4 x 4", "quadratic rule")


def run(options: Options) -> None:
    """Searches, then draws the figure and writes the page."""
    bench = options.bench()
    store = options.store()
    factors = (INNER, options.communication)
    found = find_all(bench, _setups(options.seeds or designs.SEEDS, options.thin), store, factors)
    panels = _lines(found, list(bench.targets).index("true"), factors)
    flat = panels[FLAT]
    title = f"{bench.name}, K = 16, a sync of all costs {factors[1]:g}, of a block {INNER:g}"
    others = {name: lines for name, lines in panels.items() if name != FLAT}
    figures.methods_figure(others, flat, title, options.path("variants", "png"))
    parts = [
        f"# Other schedules, K = 16, {bench.name}",
        report.preamble(bench, found, f"{options.communication:g}"),
        f"A sync inside a block of four costs {INNER:g}.",
        "## Time relative to the fastest",
        _table(panels),
        "## What was run",
        report.effort(bench, found, store, factors),
    ]
    options.path("variants", "md").write_text("\n\n".join(parts) + "\n")


def _setups(seeds: int, thin: bool) -> list[Setup]:
    flat = [
        local(16, batch, local_steps, seed)
        for batch in designs.method_batches(thin)
        for local_steps in (1, 16)
        for seed in range(seeds)
    ]
    return [*flat, *designs.methods(seeds, thin)]


def _lines(
    found: Mapping[Setup, Found], target: int, factors: tuple[float, float]
) -> dict[str, Lines]:
    """Relative times by family, label and B."""
    shown = relative(times(found, target, factors))
    lines: dict[str, dict[str, dict[int, np.ndarray]]] = {family: {} for family in FAMILIES}
    for setup in found:
        family, label = _name(setup)
        lines[family].setdefault(label, {})[setup.batch] = shown[cell_of(setup)]
    return dict(lines)


def _name(setup: Setup) -> tuple[str, str]:
    """Family and label."""
    match setup.schedules:
        case (Every(local_steps),):
            return FLAT, f"H = {local_steps}"
        case (PostLocal(local_steps, after),):
            return FAMILIES[1], f"H = {local_steps} after {after} steps"
        case (Every(inner), Every(outer)):
            return FAMILIES[2], f"H = {inner}, H^b = {outer}"
        case (Qsr(alpha=alpha),):
            return FAMILIES[3], f"H = ({alpha:g} / γ)²"
    raise ValueError(f"no family for {setup.label}")


def _table(panels: Mapping[str, Lines]) -> str:
    axis = list(next(iter(panels[FLAT].values())))
    rows = [
        [family, label, *(spread(by_batch[batch]) for batch in axis)]
        for family, lines in panels.items()
        for label, by_batch in lines.items()
    ]
    return markdown.table(["", "schedule", *(f"B = {batch}" for batch in axis)], rows)


if __name__ == "__main__":
    command(run)
