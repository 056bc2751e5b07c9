"""Finds settings that were given but have no effect; a run reports them before it starts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from localsgd.reduce.named import COMPRESSORS
from localsgd.train.config.methods import METHODS, method
from localsgd.train.config.parts import OUTSIDE
from localsgd.train.config.plan import Plan
from localsgd.train.config.run import PRESETS, Run
from localsgd.train.data.sampling.partition import Partition

Acts = Callable[[Run], bool]


def _read(name: str) -> Acts:
    """A condition: whether the method's schedule reads the setting `name`."""
    return lambda run: name in method(run.method).uses


def _from_outside(run: Run) -> bool:
    """Whether the compressor is of another package; those stand in a `CompressedMean`."""
    return run.compression is not None and run.compression in OUTSIDE["compression"]


def _unequal(run: Run) -> bool:
    """Whether workers differ in what updates are weighted by."""
    slow = run.weighting == "fednova" and len({*run.slowdown}) > 1
    return slow or Partition.parse(run.partition).owned


ACTS: Mapping[str, Acts] = {
    **{name: _read(name) for one in METHODS.values() for name in one.uses if name != "local_steps"},
    "step_warmup_shape": _read("step_warmup"),
    "outer_lr": lambda run: run.outer != "average",
    "outer_momentum": lambda run: run.outer != "average",
    "compression_way": lambda run: run.compression in COMPRESSORS or _from_outside(run),
    "weighting": _unequal,
    "sign_scales": lambda run: run.compression in ("sign", "ef-sign", "majority"),
    "top_k_fraction": lambda run: run.compression == "top-k",
    "power_sgd_rank": lambda run: run.compression == "power-sgd",
    "correction": lambda run: run.delay != 0,
    "lr_decay": lambda run: run.lr_schedule == "steps",
    "lr_cycles": lambda run: run.lr_schedule == "cyclic",
    "lr_floor": lambda run: run.lr_schedule != "steps",
    "trust": lambda run: run.optimizer in ("lars", "larc"),
    "noise_decay": lambda run: run.noise > 0,
    "nesterov": lambda run: run.optimizer in ("sgd", "sign") and run.momentum != 0,
}
"""Conditions under which a setting has an effect, for those that not every run reads."""
FILLED: Mapping[str, Acts] = {
    "momentum": lambda run: run.optimizer not in ("adam", "adamw"),
    "lr_batch": lambda run: run.lr_scaling != "none",
    "lr_decay_at": lambda run: run.lr_schedule == "steps",
    "lr_warmup": lambda run: Plan(run, 1).lr_scale > 1,
}
"""The same for settings that every completed run has, given or not."""


def unused_settings(run: Run, varied: Collection[str] = ()) -> list[str]:
    """Names of a completed run's settings that differ from their defaults without effect.

    Args:
        run: the run.
        varied: settings that were surely given.
    """
    usual = msgspec.structs.asdict(Run()) | PRESETS
    found = [
        name
        for name, acts in ACTS.items()
        if getattr(run, name) not in (None, usual[name]) and not acts(run)
    ]
    found += [name for name, acts in FILLED.items() if name in varied and not acts(run)]
    steps = run.local_steps or ()
    if "local_steps" not in method(run.method).uses and any(h != 1 for h in steps):
        found.insert(0, "local_steps")
    return found
