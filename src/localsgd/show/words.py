"""How runs and their parts are called."""

from __future__ import annotations

from localsgd.methods import method
from localsgd.run import Run
from localsgd.topology import Topology


def level_name(level: int, levels: int) -> str:
    """Who agrees at a level: `all workers`, `within blocks`, `between blocks`."""
    if levels == 1:
        return "all workers"
    if level == 0:
        return "within blocks"
    if level == levels - 1:
        return "between blocks" if levels == 2 else f"level {level + 1}, outermost"
    return f"level {level + 1}"


def local_steps(run: Run) -> str:
    """H of a completed run, innermost level first, over time: `8`, `1→8`, `2, 4`."""
    uses = method(run.method).uses
    levels = Topology.parse(run.topology or 8).levels
    if "local_steps" not in uses:
        return ", ".join(["1"] * levels)
    final = ", ".join(map(str, run.local_steps or ()))
    return f"1→{final}" if {"switch", "step_warmup"} & set(uses) else final
