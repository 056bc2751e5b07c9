"""Completes a run: settings that were left open come from its task and its method."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from localsgd.averaging.topology import Topology
from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.train.config.blame import naming_parts
from localsgd.train.config.methods import method
from localsgd.train.config.parts import plugins_of
from localsgd.train.config.plan import Plan, known
from localsgd.train.config.run import PRESETS, Run
from localsgd.train.data.task import Card

T = TypeVar("T")


def complete_run(given: Run, card: Card) -> Run:
    """The run with all open settings filled in, and checked against the task."""
    defaults = card.defaults
    topology = given.parsed_topology()
    preset = {**PRESETS, **method(given.method).preset}
    run = msgspec.structs.replace(
        given,
        **{name: _default(getattr(given, name), preset[name]) for name in PRESETS},
        model=given.model or card.default_model,
        workers=topology.workers,
        topology=str(topology),
        local_steps=_local_steps(given, topology),
        epochs=_default(given.epochs, float(defaults.epochs)),
        batch=_default(given.batch, defaults.batch),
        lr=_default(given.lr, preset.get("lr", defaults.learning_rate)),
        clip=_default(given.clip, defaults.clip),
        momentum=_default(given.momentum, defaults.momentum),
        lr_decay_at=_default(given.lr_decay_at, defaults.lr_decay_at),
        lr_batch=_default(given.lr_batch, defaults.lr_batch),
        weight_decay=_default(given.weight_decay, defaults.weight_decay),
        prefetch=_default(given.prefetch, card.in_files),
    )
    if run.lr_warmup is None:
        share = 5 / 300
        if defaults.lr_warmup is not None:
            share = defaults.lr_warmup / defaults.epochs
        run = msgspec.structs.replace(run, lr_warmup=known(run.epochs) * share)
    run = msgspec.structs.replace(run, plugins=plugins_of(run))
    with naming_parts(run):
        Plan(run, given.train_samples or card.train_size).check()
    return run


def _local_steps(run: Run, topology: Topology) -> tuple[int, ...]:
    chosen = method(run.method)
    if chosen.several_levels and topology.levels < 2:
        raise UserError(
            f"method {run.method} needs blocks, but topology {topology} is flat; "
            f"write, for example, --topology {max(1, topology.workers // 2)}x2"
        )
    if chosen.one_level and topology.levels > 1:
        raise UserError(
            f"method {run.method} is for one level, but topology {topology} has {topology.levels}; "
            f"write --topology {topology.workers}"
        )
    given = run.local_steps
    if given is None:
        given = (8,) if topology.levels == 1 else (2,) * topology.levels
        if "local_steps" not in chosen.uses:
            given = (1,) * topology.levels
    if len(given) != topology.levels:
        raise UserError(
            f"local_steps has {plural(len(given), 'number')} for the "
            f"{plural(topology.levels, 'level')} of topology {topology}; give one for each, "
            "innermost first (H, H^b, ...)"
        )
    return given


def _default(value: T | None, default: T) -> T:
    return default if value is None else value
