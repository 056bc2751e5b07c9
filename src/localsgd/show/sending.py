"""Predicts the bytes that a run will send, by reducing zeros without a network.

Shapes: g groups · m members hosted here · M members · c scalars or bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from localsgd.averaging.build import build_levels
from localsgd.averaging.delay import NO_DELAY
from localsgd.averaging.inner_state import averaged_rules, rules_of
from localsgd.averaging.placement import HostedLevel, Placement
from localsgd.averaging.topology import Topology
from localsgd.rows.layout import Layout
from localsgd.schedule.progress import reported_names, seen_by
from localsgd.schedule.signals import Signal
from localsgd.show.forecast import Counts, counts
from localsgd.train.config.choices import OPTIMIZERS, mean_of, mixing_of, reducer_of
from localsgd.train.config.plan import Plan
from localsgd.wire import Ledger, Pending


@dataclass(frozen=True)
class Nowhere:
    """A `Collective` of one hosted member, to which the M - 1 others send zeros."""

    members: int

    def sum(self, x: Tensor) -> Pending[Tensor]:
        return Pending.done(x[:, 0])

    def gather(self, x: Tensor) -> Pending[Tensor]:
        return Pending.done(x.new_zeros((x.shape[0], self.members, *x.shape[2:])))

    def exchange(self, x: Tensor) -> Pending[Tensor]:
        return Pending.done(torch.zeros_like(x))

    def send(self, x: Tensor, to: Sequence[int]) -> Pending[Tensor]:
        return Pending.done(torch.zeros_like(x))


@dataclass(frozen=True)
class Sent:
    """Bytes of one member of a level.

    Args:
        once: mean bytes at one of its later syncs.
        whole: bytes in the whole run.
    """

    once: float
    whole: float


def sent(plan: Plan, layout: Layout) -> list[Sent]:
    """For each level of a completed run, innermost first, whose rows are laid out so."""
    run, found = plan.run, counts(plan)
    levels = [_of_level(plan, layout, level, found) for level in range(plan.topology.levels)]
    extra = found.whole * _signal_bytes(plan)
    if plan.topology.workers > 1:
        inner = OPTIMIZERS[run.optimizer or "sgd"](run)
        averaged = averaged_rules(rules_of(run.inner_state or ""), inner)
        on_models = found.whole - (found.on_gradients if plan.averages_gradients else 0)
        extra += sum(_bytes(layout) * (on_models // rule.period) for rule in averaged)
    return [*levels[:-1], Sent(levels[-1].once, levels[-1].whole + extra)]


def _of_level(plan: Plan, layout: Layout, index: int, found: Counts) -> Sent:
    """The bytes of one level, counted at enough syncs to tell the first from the later ones."""
    outermost = index == plan.topology.levels - 1
    turns = plan.delay.fragments if outermost else 1
    ledger = Ledger.of(1)
    one = plan.topology.sizes[index]
    if plan.topology.unequal and index == 0:
        one = plan.topology.unequal[0]
    placement = Placement(Topology((one,)), 0, 1, (HostedLevel(1, 1, Nowhere(one)),), Nowhere(one))
    reducer = reducer_of(plan.run, layout) if outermost else mean_of(plan.run)
    [level] = build_levels(
        placement,
        layout.rows(1, "cpu"),
        reducers=[reducer],
        ledger=ledger,
        delay=plan.delay if outermost else NO_DELAY,
        mixing=mixing_of(plan.run) if outermost else None,
    )

    def bytes_of(action: Callable[[], None]) -> int:
        before = ledger.bytes
        action()
        return ledger.bytes - before

    times = found.by_level[index]
    first = [bytes_of(level.average) for _ in range(turns)]
    later = [bytes_of(level.average) for _ in range(turns)]
    settled = bytes_of(level.final_average) if found.settled[index] else 0
    cycles, rest = divmod(max(0, times - turns), turns)
    whole = sum(first[:times]) + cycles * sum(later) + sum(later[:rest]) + settled
    return Sent(sum(later) / turns, whole)


def _bytes(layout: Layout) -> int:
    return layout.length * layout.dtype.itemsize


def _signal_bytes(plan: Plan) -> int:
    """The bytes of signals at a sync of all, if a schedule needs more than the step."""
    sees = {what for schedule in plan.schedules for what in seen_by(schedule)} - {"learning_rate"}
    if not sees or plan.topology.workers == 1:
        return 0
    return 8 * Signal.width(reported_names(plan.schedules))
