"""How runs and their parts are called."""

from __future__ import annotations

from typing import Any

from localsgd.averaging.topology import Topology
from localsgd.basics.options import split
from localsgd.basics.units import plural
from localsgd.train.config.parts import used_by_method
from localsgd.train.config.run import Run

NEIGHBOURS = {
    "ring": "each with the two beside it on a ring",
    "pairs": "each with one that is drawn anew",
}
"""Who averages with whom, for people."""


def level_name(level: int, levels: int) -> str:
    """Who averages at a level: `all workers`, `within blocks`, `between blocks`."""
    if levels == 1:
        return "all workers"
    if level == 0:
        return "within blocks"
    if level == levels - 1:
        return "between blocks" if levels == 2 else f"level {level + 1}, outermost"
    return f"level {level + 1}"


def local_steps(run: Run) -> str:
    """H of a completed run, innermost level first, over time: `8`, `1→8`, `2, 4`."""
    uses = used_by_method(run)
    levels = Topology.parse(run.topology or 8).levels
    final = ", ".join(map(str, run.local_steps or ()))
    if uses is None:
        return final
    if "local_steps" not in uses:
        return ", ".join(["by the run" if uses else "1"] * levels)
    if {"switch", "step_warmup", "lr_cycles"} & set(uses):
        return f"1→{final}"
    if "qsr_alpha" in uses:
        return f"{final} or more"
    return f"{final} or fewer" if "adapt_every" in uses else final


def options(run: Run, name: str | None) -> str:
    """The options that a run gives to the part `name`, to stand behind it: ` (width 24)`."""
    given = [split(text) for text in run.options]
    words = [f"{option} {value}" for of, option, value in given if of == name]
    return f" ({', '.join(words)})" if words else ""


def beyond_averaging(run: Run) -> list[str]:
    """What a completed run does at syncs beside taking the plain mean."""
    found = []
    if run.neighbours != "all":
        found.append(NEIGHBOURS[run.neighbours])
    if run.compression not in (None, "none"):
        found.append(f"compression {run.compression}{options(run, run.compression)}")
    if run.outer not in (None, "average"):
        numbers = {"lr": run.outer_lr, "momentum": run.outer_momentum}
        given = [f"{name} {value:g}" for name, value in numbers.items() if value is not None]
        found.append(" ".join([f"outer {run.outer}{options(run, run.outer)}", *given]))
    if (run.fragments or 1) > 1:
        found.append(f"{run.fragments} fragments in turns")
    if run.delay:
        part = f", {run.correction:g} of the way" if run.correction != 1 else ""
        found.append(f"means applied {plural(run.delay, 'sync')} later{part}")
    if run.inner_state:
        found.append(f"inner state {run.inner_state}")
    if run.weighting != "equal":
        found.append(f"weighted by {run.weighting}")
    if run.partition != "reshuffled":
        leaving = ", leaving rounds early" if run.exhausted == "leave" else ""
        found.append(f"partition {run.partition}{leaving}")
    if run.slowdown:
        found.append(f"slowdown {' '.join(f'{factor:g}' for factor in run.slowdown)}")
    return found


def plain(value: Any) -> str:
    """A setting's value in words: `2 8`, `0.1`."""
    if isinstance(value, list | tuple):
        return " ".join(map(plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
