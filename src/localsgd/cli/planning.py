"""The command `plan`: which H hides the network, for a model and a cluster.

    localsgd plan --topology 4x2 --model resnet20 --task cifar10 --batch 32     # under torchrun
    localsgd plan --topology 1000x8 --step-seconds 0.2 --scalars 25e6 --rates 100e9 10e9

Everything that is not given is measured on the machines it runs on; the resulting times are
modelled.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.table import Table

from localsgd.averaging.placement import HostedLevel, Placement, placement_of
from localsgd.averaging.topology import Topology
from localsgd.basics.console import Console
from localsgd.basics.units import count, duration, percent, plural
from localsgd.cli.options import PlanCommand
from localsgd.cost.allreduce import Link
from localsgd.cost.link import fitted
from localsgd.cost.planner import BITS, Plan, Stage
from localsgd.errors import UserError
from localsgd.show.canvas import canvas, check_picture, look, plain_log_axis
from localsgd.show.narrow import Fitting
from localsgd.train.config.blame import naming_parts
from localsgd.train.config.complete import complete_run
from localsgd.train.config.run import Run
from localsgd.train.data import tasks
from localsgd.train.engine.assembly import assemble, pick_device
from localsgd.train.launch import joined
from localsgd.wire import InProcess
from localsgd.wire.timing import measured

WARM_STEPS, TIMED_STEPS = 3, 8
EVIDENCE = (
    (1, "That is mini-batch SGD."),
    (
        2,
        "On CIFAR-10 (ResNet-20, K = 16) the paper finds no loss at H = 2 from the start: 92.57 "
        "against 92.48 %.",
    ),
    (
        8,
        "On CIFAR-10 (ResNet-20, K = 16) the paper loses half a point at H = 8 from the start "
        "(92.0 against 92.5 %), and nothing as post-local SGD.",
    ),
    (
        32,
        "As post-local SGD the paper loses nothing at H = 16 and 32 (ResNet-20, K = 16, CIFAR-10: "
        "92.80 and 93.02 against 92.48 %); from the start it loses more the larger H is.",
    ),
    (
        64,
        "The paper has H = 64 with signs alone: 92.76 % with error feedback, post-local, against "
        "92.45 % at H = 1.",
    ),
    (0, "The paper has no accuracy at so large an H: try a smaller one first."),
)
"""The paper's evidence, each with the most steps between global syncs that it covers.

The last one is for larger numbers of steps.
"""
POWERS = tuple(2**power for power in range(11))


def plan(command: PlanCommand) -> int:
    """Measures what is missing, and prints the plan."""
    topology = Topology.parse(command.topology)
    _check(command, topology)
    with joined(pick_device("auto").type) as world:
        device = pick_device("auto", world.local_rank)
        links = _given_links(command) or _measured_links(topology, world.size, device)
        step_seconds, scalars = command.step_seconds, command.scalars
        if step_seconds is None or scalars is None:
            measured_seconds, counted = _measured_compute(command, device)
            step_seconds = measured_seconds if step_seconds is None else step_seconds
            scalars = counted if scalars is None else scalars
        stages = tuple(
            Stage(members, link, command.algorithm)
            for members, link in zip(topology.sizes, links, strict=True)
        )
        coding = command.coding_seconds
        made = Plan(step_seconds, round(scalars), stages, command.spread, coding)
        if world.rank == 0:
            _show(made, command)
    return 0


def _check(command: PlanCommand, topology: Topology) -> None:
    levels = topology.levels
    if topology.unequal:
        raise UserError(
            f"--topology {topology} has unequal blocks, which a plan can't handle; give blocks of "
            "one size, such as 4x2"
        )
    if command.rates and len(command.rates) != levels:
        raise UserError(
            f"--rates has {plural(len(command.rates), 'number')} for {plural(levels, 'level')}; "
            "give one for each"
        )
    if command.latencies and (not command.rates or len(command.latencies) != levels):
        raise UserError("--latencies needs --rates, and a number for each level")
    if command.inner and len(command.inner) != levels - 1:
        raise UserError(
            f"--inner has {plural(len(command.inner), 'number')} for {plural(levels - 1, 'level')} "
            "inside the outermost one; give one for each"
        )
    if command.batch < 1:
        raise UserError(f"--batch {command.batch} is too small; give 1 or more")
    if command.scalars is not None and not 1 <= command.scalars < math.inf:
        raise UserError(f"--scalars {command.scalars:g} is out of range; give 1 or more")
    if not 0 < command.waiting < 1:
        raise UserError(
            f"--waiting {command.waiting:g} is no fraction of the time; give one in (0, 1)"
        )
    if command.figure is not None:
        check_picture(command.figure)


def _given_links(command: PlanCommand) -> list[Link]:
    latencies = command.latencies or (0.0,) * len(command.rates)
    pairs = zip(command.rates, latencies, strict=True)
    return [Link.of_rate(rate, latency) for rate, latency in pairs]


def _measured_links(topology: Topology, processes: int, device: torch.device) -> list[Link]:
    if processes != topology.workers:
        raise UserError(
            f"{plural(processes, 'process', 'processes')} can't measure the links of {topology}; "
            f"start {topology.workers} by torchrun, or give --rates"
        )
    return [
        fitted(level.collective.members, *measured(level.collective, level.hosted, device=device))
        for level in placement_of(topology).hosted_levels
    ]


def _measured_compute(command: PlanCommand, device: torch.device) -> tuple[float, int]:
    """Seconds of one worker's local step on this machine, and scalars of its model."""
    task = tasks.load(command.task, command.data_dir, device=device)
    given = Run(task=command.task, model=command.model, batch=command.batch, workers=1)
    run = complete_run(given, task.card)
    alone = Placement(Topology((1,)), 0, 1, (HostedLevel(1, 1, InProcess()),), InProcess())
    times = []
    with naming_parts(run):
        workers = assemble(run, task, alone, device).workers
        for _ in range(WARM_STEPS + TIMED_STEPS):
            start = time.perf_counter()
            workers.backward()
            workers.apply(0.0)
            float(workers.loss_sums[0])  # waits for a GPU
            times.append(time.perf_counter() - start)
    scalars = sum(slot.length for slot in workers.layout.slots)
    return statistics.median(times[WARM_STEPS:]), scalars


def _show(made: Plan, command: PlanCommand) -> None:
    console = Console()
    console.print(_cluster(made))
    console.print(_table(made, command))
    inner = _inner(command, made)
    for way in BITS:
        console.print(_advice(made, command, inner, way))
    if command.figure is not None:
        _draw(made, command, command.figure)
        console.print(f"Picture: {command.figure}")


def _inner(command: PlanCommand, made: Plan) -> tuple[int, ...]:
    return command.inner or (1,) * (len(made.stages) - 1)


def _cluster(made: Plan) -> str:
    links = [
        f"level {level}: {plural(stage.members, 'member')}, alpha {duration(stage.link.alpha)}, "
        f"beta {1e9 * stage.link.beta:.3g} ns a byte"
        for level, stage in enumerate(made.stages, 1)
    ]
    return (
        f"{plural(made.workers, 'worker')}, {count(made.scalars)} scalars, "
        f"{duration(made.step_seconds)} for a local step. {'; '.join(links)}."
    )


def _table(made: Plan, command: PlanCommand) -> Table:
    """Modelled time per sample of a worker, and the fraction of it spent waiting, against H."""
    title = "Time per sample, and the fraction of it spent waiting (modelled)"
    table = Fitting(title=title, title_justify="left")
    table.add_column("H" if len(made.stages) == 1 else "H of the outermost level", justify="right")
    for way in BITS:
        table.add_column(way, justify="right", no_wrap=True)
    for steps in POWERS:
        local_steps = [*_inner(command, made), steps]
        cells = [
            f"{duration(made.seconds(local_steps, way) / command.batch)}  "
            f"{percent(made.waiting_fraction(local_steps, way))}"
            for way in BITS
        ]
        table.add_row(str(steps), *cells)
    return table


def _advice(made: Plan, command: PlanCommand, inner: Sequence[int], way: str) -> str:
    steps = made.smallest(command.waiting, way, inner)
    if steps is None:
        return f"{way}: no H brings waiting under {percent(command.waiting)}; raise --inner"
    local_steps = " ".join(map(str, [*inner, steps]))
    hierarchical = "hierarchical-" if inner else ""
    method = f"{hierarchical}post-local" if steps > 1 else f"{hierarchical or 'mini-batch'}"
    compression = {"dense": "", "int8": " --compression int8", "sign": " --compression ef-sign"}
    model = f" --model {command.model}" if command.model else ""
    return (
        f"{way}: H = {steps} is the smallest at which waiting is under {percent(command.waiting)}. "
        f"{evidence(steps * math.prod(inner))}\n"
        f"  localsgd run --task {command.task}{model} --batch {command.batch} --method "
        f"{method.removesuffix('-')} --topology {command.topology} --local-steps {local_steps}"
        f"{compression[way]}"
    )


def evidence(local_steps: int) -> str:
    """The paper's findings on accuracy with this many steps between global syncs."""
    for most, words in EVIDENCE:
        if local_steps <= most:
            return words
    return EVIDENCE[-1][1]


def _draw(made: Plan, command: PlanCommand, path: Path) -> None:
    with canvas(path, 6.0, 4.0) as figure:
        axes = figure.subplots()
        for index, way in enumerate(BITS):
            times = [
                1000 * made.seconds([*_inner(command, made), steps], way) / command.batch
                for steps in POWERS
            ]
            axes.plot(POWERS, times, label=way, **look(index))
        axes.axhline(1000 * made.step_seconds / command.batch, color="#888888", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_xticks(POWERS, [str(steps) for steps in POWERS])
        plain_log_axis(axes)
        axes.set_xlabel("H of the outermost level")
        axes.set_ylabel("ms per sample, modelled")
        axes.legend()
