"""What a user asks of `LocalSGD`, checked and made equal in form."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from localsgd.averaging.delay import NO_DELAY, Delay
from localsgd.averaging.inner_state import Rule, rules_of
from localsgd.averaging.outer import Outer, as_outer
from localsgd.averaging.topology import Topology
from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.optimizer.consistency import described
from localsgd.reduce import ExactMean, Reducer, reducer_named
from localsgd.schedule.adaptive import Cyclic
from localsgd.schedule.fixed import every, length_of
from localsgd.schedule.progress import Progress, Schedule, checked_length

AverageWhat: TypeAlias = Literal["auto", "models", "gradients"]
NotFinite: TypeAlias = Literal["error", "leave_out"]
LocalSteps: TypeAlias = int | Schedule | Sequence[int | Schedule]
ReducerChoice: TypeAlias = Reducer | str | None
"""A reducer, its name, or None for the exact mean."""
OuterChoice: TypeAlias = Outer | partial[Optimizer] | str | None
"""An outer optimizer, a `torch.optim` partial, a name, or None for plain averaging."""


@dataclass(frozen=True)
class Settings:
    """One schedule, reducer and outer optimizer for each level, innermost first.

    Args:
        exact: how many of the innermost levels may average gradients in place of models.
    """

    topology: Topology
    schedules: tuple[Schedule, ...]
    reducers: tuple[Reducer, ...]
    outers: tuple[Outer | None, ...]
    average: AverageWhat
    exact: int
    delay: Delay = NO_DELAY
    inner_state: Mapping[str, Rule] = field(default_factory=dict)
    not_finite: NotFinite = "error"

    @property
    def levels(self) -> int:
        return self.topology.levels

    def described(self) -> dict[str, str]:
        """By the words that a user knows them by."""
        return {
            "topology": str(self.topology),
            "local_steps": described(self.schedules),
            "average": self.average,
            "reducer": described(list(self.reducers)),
            "outer": described(self.outers),
            "delay": str(self.delay),
            "inner_state": str(dict(self.inner_state)),
            "not_finite": self.not_finite,
        }


def patience(timeout: timedelta | float) -> timedelta:
    """The time limit of a collective; refuses what is no span of time."""
    found: object = timeout
    if isinstance(timeout, int | float) and not isinstance(timeout, bool):
        with suppress(OverflowError, ValueError):  # infinity, nan
            found = timedelta(seconds=timeout)
    if not isinstance(found, timedelta) or found <= timedelta(0):
        raise UserError(
            f"timeout = {timeout!r} is no time to wait; give seconds above 0 or a timedelta"
        )
    return found


def settings_of(
    processes: int,
    local_steps: LocalSteps,
    topology: str | int | Topology | DeviceMesh | None,
    average: AverageWhat,
    reducer: ReducerChoice | Sequence[ReducerChoice],
    outer: OuterChoice | Sequence[OuterChoice],
    delay: Delay = NO_DELAY,
    inner_state: str = "",
    not_finite: NotFinite = "error",
) -> Settings:
    """Checks what needs no other process."""
    if not_finite not in ("error", "leave_out"):
        raise UserError(f'not_finite={not_finite!r} is unknown; there are "error" and "leave_out"')
    if average not in ("auto", "models", "gradients"):
        raise UserError(f'average={average!r} is unknown; there are "auto", "models", "gradients"')
    _check_kinds(delay, inner_state)
    blocks = _topology(topology, processes)
    schedules = _schedules(local_steps, blocks)
    means = tuple(map(_reducer, _by_level("reducer", reducer, blocks)))
    steps = tuple(as_outer(one, blocks.workers) for one in _by_level("outer", outer, blocks))
    plain = [mean.linear and step is None for mean, step in zip(means, steps, strict=True)]
    plain[-1] = plain[-1] and delay.none
    exact = len(list(itertools.takewhile(bool, plain)))
    if average == "gradients":
        _check_gradients(schedules, exact)
    exact = 0 if average == "models" else exact
    rules = rules_of(inner_state)
    return Settings(blocks, schedules, means, steps, average, exact, delay, rules, not_finite)


def _check_kinds(delay: object, inner_state: object) -> None:
    if not isinstance(delay, Delay):
        raise UserError(
            f"delay={delay!r} is no localsgd.Delay; give one, such as Delay(fragments=4, syncs=1)"
        )
    if not isinstance(inner_state, str):
        raise UserError(
            f"inner_state={inner_state!r} is no text; write KEY=RULE, such as "
            '"exp_avg=average,exp_avg_sq=average:4"'
        )


def _topology(given: str | int | Topology | DeviceMesh | None, processes: int) -> Topology:
    if given is None:
        topology = Topology((processes,))
    elif isinstance(given, Topology):
        topology = given
    elif isinstance(given, DeviceMesh):
        topology = _of_mesh(given)
    else:
        topology = Topology.parse(given)
    if topology.workers != processes:
        raise UserError(
            f"topology {topology} has {plural(topology.workers, 'worker')} for "
            f"{plural(processes, 'process', 'processes')}; LocalSGD has one worker in each process "
            "of torch.distributed, or, if "
            'workers are sharded, in each place of topology=mesh["replicate"]'
        )
    return topology


def _of_mesh(mesh: DeviceMesh) -> Topology:
    ranks = mesh.mesh
    whole = not dist.is_initialized() or ranks.numel() == dist.get_world_size()
    if whole and not torch.equal(ranks.flatten(), torch.arange(ranks.numel())):
        raise UserError(
            f"the mesh holds the ranks {ranks.tolist()}; blocks must be ranks in a row, as in "
            "init_device_mesh(device, (blocks, workers of a block))"
        )
    return Topology(tuple(reversed(ranks.shape)))


def _schedules(local_steps: LocalSteps, topology: Topology) -> tuple[Schedule, ...]:
    if isinstance(local_steps, str):
        raise UserError(
            f"local_steps={local_steps!r} is text; give a number, a schedule or a list of them, "
            "such as local_steps=4 or local_steps=[4, 8]"
        )
    several = isinstance(local_steps, Sequence)
    given = local_steps if isinstance(local_steps, Sequence) else [local_steps]
    if len(given) != topology.levels:
        what = plural(len(given), "schedule") if several else "one number or schedule"
        raise UserError(
            f"local_steps has {what} for the {plural(topology.levels, 'level')} of topology "
            f"{topology}; give one for each, innermost first, such as local_steps=[2, 8] for 2 "
            "local steps and 8 block steps"
        )
    if any(isinstance(one, Cyclic) for one in given[1:]):
        raise UserError(
            "local_steps has cyclic(...) at an outer level, which counts rounds, and those need "
            "not end with a cycle of steps; give it for one level"
        )
    return tuple(s if callable(s) else every(checked_length(s, "local_steps")) for s in given)


def _by_level(name: str, given: object, topology: Topology) -> list[object]:
    """A list with an entry for each level; one value is the outermost level's."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        return [*[None] * (topology.levels - 1), given]
    if len(given) != topology.levels:
        raise UserError(
            f"{name} has {plural(len(given), 'entry', 'entries')} for the "
            f"{plural(topology.levels, 'level')} of topology {topology}; give one for each, "
            "innermost first, None for the plain mean, or one value without a list for the "
            "outermost level"
        )
    return list(given)


def _reducer(given: object) -> Reducer:
    if given is None:
        return ExactMean()
    if isinstance(given, str):
        return reducer_named(given)
    if isinstance(given, Reducer) and not isinstance(given, type):
        return given
    raise UserError(
        f'{given!r} is no reducer; give a name such as "ef-sign", an object of localsgd.reduce, a '
        "compressor in CompressedMean(...), or None for the plain mean"
    )


def _check_gradients(schedules: Sequence[Schedule], exact: int) -> None:
    wanted = len(list(itertools.takewhile(lambda s: length_of(s, Progress()) == 1, schedules)))
    if wanted == 0:
        raise UserError(
            'average="gradients" needs H = 1 at the start, and local_steps starts with '
            f'H = {schedules[0](Progress())}; choose "models", or "auto"'
        )
    if wanted > exact:
        raise UserError(
            'average="gradients" needs the exact mean and plain averaging at every level that '
            f"synchronises after each step, and level {exact + 1} (counted from the innermost) has "
            'another reducer or an outer optimizer; choose average="models"'
        )
