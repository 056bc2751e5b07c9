"""Names become objects: a run and its place among processes give workers, levels and schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from localsgd.averaging.build import build_levels
from localsgd.averaging.inner_state import InnerStates, check_keys, rules_of
from localsgd.averaging.level import Averaging, Level
from localsgd.averaging.overlap import Overlapped, overlapped
from localsgd.averaging.placement import AnyLevel, Placement, row_multiple
from localsgd.basics.files import check_regular
from localsgd.errors import UserError
from localsgd.loop import Steps, train
from localsgd.schedule.observations import Observations
from localsgd.schedule.progress import Progress, reported_names, seen_by
from localsgd.schedule.rounds import Position
from localsgd.schedule.signals import Signals
from localsgd.train.config.choices import (
    BY_TENSOR,
    OPTIMIZERS,
    mean_of,
    mixing_of,
    outer_of,
    reducer_of,
    transforms_of,
)
from localsgd.train.config.plan import Plan
from localsgd.train.config.run import Run
from localsgd.train.data import models
from localsgd.train.data.sampling.order import Order
from localsgd.train.data.sampling.partition import Partition
from localsgd.train.data.sampling.streams import Streams
from localsgd.train.data.task import Task
from localsgd.train.engine.growing_batch import growing
from localsgd.train.engine.hosted import Inner, Workers
from localsgd.train.engine.losses import loss_of, losses_of
from localsgd.train.engine.pace import Pace, slowed, weights_of
from localsgd.wire import Ledger
from localsgd.wire.metered import Metered, Waiting

GRADIENT_NORM = "gradient_norm"
"""The number that the trainer reports, of each worker's own gradient at each step, if a schedule
looks at it: the norm as the backward pass has left it, before it is clipped or averaged.
"""


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """`auto`, `cpu` or `cuda` to a device; of several GPUs the one of this process."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise UserError("device cuda is not there; use --device cpu")
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    if name != "cpu":
        raise UserError(
            f"unknown device {name!r}; use cpu, cuda or auto, and CUDA_VISIBLE_DEVICES for one of "
            "several GPUs"
        )
    return torch.device("cpu")


@dataclass(frozen=True)
class Own:
    """Parts of a run that are given as objects in place of names, on all processes alike.

    Args:
        model: makes the model of a task; it starts with the weights that it has then.
        no_decay: the names of a model's parameters without weight decay.
    """

    model: models.Build | None = None
    no_decay: models.Rule | None = None


NAMED = Own()
"""All parts have names."""


@dataclass
class Assembly:
    """All that trains: built by `assemble`, moved by `advance`, saved and loaded by `state`.

    Args:
        run: completed.
        plan: what follows from it.
        task: the data.
        placement: of the workers over processes.
        workers: those hosted here.
        levels: over their parameters, innermost first.
        gradients: the same over their gradients; empty where models are averaged at all times.
        order: which samples whom.
        ledger: what crossed each level.
        position: where in its rounds the run is.
        signals: what schedules see beyond the step.
        inner_states: what becomes of the inner optimizers' state at outermost syncs on models.
        observations: what goes into the signals.
    """

    run: Run
    plan: Plan
    task: Task
    placement: Placement
    workers: Workers
    levels: list[AnyLevel]
    gradients: list[AnyLevel | Overlapped]
    order: Order | Streams
    ledger: Ledger
    position: Position
    signals: Signals
    inner_states: InnerStates
    observations: Observations

    @property
    def epoch(self) -> float:
        return self.workers.step / self.plan.steps_per_epoch

    @property
    def syncs(self) -> list[int]:
        """How often each level has averaged, on models or on gradients, innermost first."""
        of_gradients = self.gradients or [None] * len(self.levels)
        return [
            level.syncs + (gradient.syncs if gradient else 0)
            for level, gradient in zip(self.levels, of_gradients, strict=True)
        ]

    def progress(self, step: int) -> Progress:
        """What schedules see: it follows from the step or is averaged, so all see the same."""
        rate = self.plan.learning_rate
        return replace(
            self.signals.progress(step),
            epoch=step / self.plan.steps_per_epoch,
            fraction=step / self.plan.steps,
            learning_rate=rate(step),
            decayed=rate.decayed(step),
        )

    def advance(
        self, after_step: Callable[[], None] = lambda: None, steps: int | None = None
    ) -> None:
        """Trains from where the run is to its end, or to step `steps`."""
        workers: Steps = self.workers
        levels: Sequence[Averaging] = self.levels
        gradients: Sequence[Averaging] = self.gradients
        if self.plan.method.grows_batch:
            workers, levels = growing(self.workers, self.gradients)
            gradients = ()
        self.observations.restart()
        train(
            workers,
            levels,
            self.plan.schedules,
            self.plan.learning_rate,
            steps=self.plan.steps if steps is None else steps,
            position=self.position,
            progress=self.progress,
            gradients=gradients,
            exchange=self._exchange,
            inner_states=self.inner_states,
            after_step=after_step,
        )

    def _exchange(self) -> None:
        """Workers tell each other what schedules will see."""
        if self.signals.needed:
            rate = self.plan.learning_rate(max(0, self.workers.step - 1))
            self.signals.exchange(self.observations.signals(rate, self.ledger.seconds))

    def autocast(self) -> AbstractContextManager[object]:
        if self.run.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.workers.params.device.type, torch.bfloat16)


def assemble(
    run: Run,
    task: Task,
    placement: Placement,
    device: torch.device,
    waiting: Waiting = nullcontext,
    *,
    weights: bool = True,
    own: Own = NAMED,
) -> Assembly:
    """Builds what trains `run`, which is completed, on `task` with the workers of `placement`.

    Args:
        waiting: makes a context for the time in which this process waits for others to synchronise.
        weights: whether a run that starts from a file's reads them; a checkpoint has its own.
        own: what is given as an object in place of a name.
    """
    plan = Plan(run, task.train_size)
    position = Position.start(plan.topology.levels)
    model = model_of(run, task, device, weights=weights, own=own)
    order = _order(run, plan, task)
    pace = _pace(run, order)
    names = reported_names(plan.schedules)
    observations = Observations(placement.hosted, device, names)
    listens = any("loss" in seen_by(schedule) for schedule in plan.schedules)
    measures = GRADIENT_NORM in names
    _check_reported(names)
    inner = Inner(
        OPTIMIZERS[run.optimizer or "sgd"](run),
        weight_decay=run.weight_decay or 0.0,
        no_decay=(own.no_decay or models.decay_rule(run.no_decay, _name_of(run, own)))(model),
        elementwise=run.optimizer not in BY_TENSOR,
    )
    rules = rules_of(run.inner_state or "")
    check_keys(rules, inner.make)
    workers = Workers(
        model,
        loss_of(run, task, order, placement.workers, device),
        inner,
        placement.workers,
        row_multiple(plan.topology.workers),
        transforms_of(run),
        _active(pace, position),
        observations.add if listens else _unheard,
        losses_of(run, task, order, placement.workers, model) if run.batched else None,
        partial(observations.add, name=GRADIENT_NORM) if measures else None,
    )
    count = plan.topology.levels
    ledger = Ledger.of(count)
    build = partial(build_levels, placement, ledger=ledger, waiting=waiting)
    means = [mean_of(run) for _ in range(count)]
    gradients = build(workers.grads, reducers=means) if plan.averages_gradients else []
    levels = build(
        workers.params,
        reducers=[*means[:-1], reducer_of(run, workers.layout)],
        outers=[None] * (count - 1) + [outer_of(run)],
        delay=plan.delay,
        mixing=mixing_of(run),
        weigh=_weigh(run, order, pace, position, placement, workers) if plan.weighs else None,
    )
    world = Metered(placement.world, ledger.levels[-1], waiting)
    return Assembly(
        run,
        plan,
        task,
        placement,
        workers,
        levels,
        _overlapping(gradients, run, plan, placement, workers, measures),
        order,
        ledger,
        position,
        Signals(plan.schedules, world, device, known=("learning_rate",)),
        InnerStates(workers.optimizers, rules, world, mean_of(run)),
        observations,
    )


def _check_reported(names: Sequence[str]) -> None:
    """Refuses schedules that look at what the trainer does not report."""
    if others := [name for name in names if name != GRADIENT_NORM]:
        raise UserError(
            f"the schedule looks at {', '.join(others)}, which only a loop of your own can report "
            'to LocalSGD; the trainer tells it the loss (sees = ("loss",)) and the norm of the '
            f'gradient (sees = ("reported:{GRADIENT_NORM}",))'
        )


def _unheard(row: int, loss: Tensor) -> None:
    """Nobody judges by the loss: no sum in every step."""


def _overlapping(
    levels: Sequence[AnyLevel | Overlapped],
    run: Run,
    plan: Plan,
    placement: Placement,
    workers: Workers,
    measures: bool,
) -> list[AnyLevel | Overlapped]:
    """Levels over gradients, the innermost in slices where it crosses processes and nothing changes
    gradients after the backward pass.
    """
    innermost = placement.hosted_levels[0]
    crosses = innermost.hosted < innermost.collective.members
    changed = workers.transforms or run.batched or plan.method.grows_batch or measures
    if not levels or not crosses or changed or not isinstance(levels[0], Level):
        return [*levels]
    multiple = row_multiple(plan.topology.workers)
    return [overlapped(levels[0], workers.models[-1], workers.layout, multiple), *levels[1:]]


def _order(run: Run, plan: Plan, task: Task) -> Order | Streams:
    partition, workers, batch = (
        Partition.parse(run.partition),
        plan.topology.workers,
        run.batch or 0,
    )
    if task.card.sequential:
        if partition.owned:
            raise UserError(f"the task {task.name} is read as streams; use partition reshuffled")
        return Streams(plan.samples, workers, batch, run.seed)
    parts: tuple[Tensor, ...] = ()
    if partition.owned:
        labels = task.labels
        if labels is None:
            raise UserError(f"the task {task.name} has no labels; use partition reshuffled")
        parts = partition.parts(labels, workers, run.seed)
    return Order(plan.samples, workers, batch, run.seed, parts)


def _pace(run: Run, order: Order | Streams) -> Pace | None:
    """How many steps each worker takes in a round, where they differ."""
    if run.slowdown:
        return slowed(run.slowdown)
    if run.exhausted == "leave" and isinstance(order, Order):
        sizes = [len(own) for own in order.parts]
        return Pace(tuple(size / max(sizes) for size in sizes))
    return None


def _active(pace: Pace | None, position: Position) -> Callable[[int], bool]:
    if pace is None:
        return lambda worker: True

    def active(worker: int) -> bool:
        length = position.lengths[0]
        return pace.active(worker, length - position.left[0], length)

    return active


def _weigh(
    run: Run,
    order: Order | Streams,
    pace: Pace | None,
    position: Position,
    placement: Placement,
    workers: Workers,
) -> Callable[[], Tensor]:
    """What the updates of the workers hosted here weigh at a sync, `[1, w]`."""
    count = placement.topology.workers
    parts = order.parts if isinstance(order, Order) else ()
    samples = torch.tensor([len(own) for own in parts] or [1] * count)

    def weigh() -> Tensor:
        done = max(1, position.lengths[0] - position.left[0])  # a round may be cut short
        steps = [done] * count
        if pace is not None:
            steps = [min(done, taken) for taken in pace.steps(position.lengths[0])]
        weights = weights_of(run.weighting, samples, steps, workers.params.dtype)
        hosted = placement.workers
        return weights[hosted.start : hosted.stop].unsqueeze(0).to(workers.params.device)

    return weigh


def _name_of(run: Run, own: Own) -> str | None:
    return None if own.model else run.model


def model_of(
    run: Run, task: Task, device: torch.device, *, weights: bool = True, own: Own = NAMED
) -> nn.Module:
    """The model that a run starts from."""
    if run.channels_last and len(task.input_shape) != 3:
        given = "text" if task.card.sequential else f"inputs of shape {task.input_shape}"
        raise UserError(f"channels_last is for images, but the task {task.name} gives {given}")
    streams = run.batch or 0
    if own.model is not None:
        model = models.built(own.model, task, run.seed, streams=streams)
    else:
        name = run.model or task.default_model
        model = models.build(name, task, run.seed, streams=streams, options=run.options)
    if run.precision == "float64":
        model = model.double()
    if run.init is not None and weights:
        load_weights(model, Path(run.init))
    if run.channels_last:
        model.to(memory_format=torch.channels_last)  # pyrefly: ignore
    return model.to(device)


def load_weights(model: nn.Module, path: Path) -> None:
    """Fills `model` from a safetensors file, strictly."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    check_regular(path)
    try:
        model.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise UserError(f"{path} is not there; give a safetensors file with weights") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is no readable safetensors file: {error}") from None
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} holds the weights of another model: {reason[:200]}") from None
