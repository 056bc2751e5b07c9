"""A run as a value: everything that its result depends on, and nothing else.

Where a run writes, how many processes host its workers and where the data lies are not part of it.
"""

from __future__ import annotations

import math
import os
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from localsgd.delayed import Delay
from localsgd.errors import UserError
from localsgd.learning_rate import SCALINGS, Cosine, LearningRate, StepDecay
from localsgd.methods import Method, Moments, method
from localsgd.schedule import Progress, Schedule
from localsgd.tasks.task import Card
from localsgd.topology import Topology
from localsgd.workers.inner_state import rules_of
from localsgd.workers.partition import Partition

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=1)]
OuterName = Literal["average", "sgd", "block-momentum", "slowmo", "bmuf", "diloco"]
PRESETS: dict[str, Any] = {
    "compression": "none",
    "outer": "average",
    "inner_state": "",
    "fragments": 1,
    "delay": 0,
    "correction": 1.0,
    "lr_scaling": "linear",
    "lr_schedule": "steps",
    "optimizer": "sgd",
}
"""What a method may choose, and what is taken where it does not."""
Compression = Literal[
    "none", "sign", "ef-sign", "majority", "int8", "top-k", "bfloat16", "power-sgd"
]


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training run.

    Settings that are `None` take the task's or the paper's value in `completed`.
    """

    task: str = "digits"
    """What is trained; `localsgd tasks` lists what there is."""
    model: str | None = None
    """Which network; the task's own where not given."""
    train_samples: Count | None = None
    """A class-balanced subset of the training data of this size; all where not given."""
    method: str = "post-local"
    """How workers agree; `localsgd tasks` lists the methods too."""
    workers: Count | None = None
    """K; follows from the topology where not given, 8 where neither is."""
    topology: str | None = None
    """Who agrees with whom: 16, 8x2 (8 blocks of 2), 4x2x2, 2+3+3; flat where not given."""
    local_steps: tuple[Count, ...] | None = None
    """H for each level, innermost first: H, H^b, ...; 8 for a flat topology."""
    switch: str = "first-decay"
    """When post-local SGD leaves H = 1: first-decay, epoch:E, step:T or share:S of the run."""
    step_warmup: Positive | None = None
    """Epochs over which local-warmup raises H; H epochs where not given (the paper's choice)."""
    step_warmup_shape: Literal["linear", "exponential", "constant"] = "linear"
    """How H grows meanwhile."""
    agree_on: Literal["auto", "models", "gradients"] = "auto"
    """What is averaged while H = 1; auto is gradients where that is possible."""
    reduction: Literal["exact", "ordered"] = "exact"
    """Order of summation: the wire's, or the workers' (same bits however they are hosted)."""
    qsr_alpha: Positive | None = None
    """α of qsr, in units of the learning rate; 0.3 of its peak where not given."""
    adapt_every: Positive | None = None
    """Epochs after which adacomm, decreasing and plateau look again; 1 where not given."""
    waiting: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    """The share of the time that method waiting lets workers wait."""
    compression: Compression | None = None
    """What the outermost level sends in place of updates; all but sign and majority with error
    feedback. The method's, or none, where not given."""
    compression_way: Literal["auto", "gather", "two-phase"] = "auto"
    """Over the wire: all payloads to all, or chunks to their owners and back; auto by size and K.
    """
    top_k_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.01
    """Of the scalars that top-k sends."""
    power_sgd_rank: Count = 2
    """Rank of power-sgd."""
    outer: OuterName | None = None
    """What the outermost level does with the mean update; the method's, or average."""
    outer_lr: Positive | None = None
    """Its learning rate; 1 where the outer optimizer has no other usual one."""
    outer_momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    """Its momentum; the usual one of the outer optimizer where not given."""
    inner_state: str | None = None
    """The inner optimizer's state at outermost agreements, by key: keep, average or reset, with a
    period, as in momentum_buffer=reset or exp_avg=average,exp_avg_sq=average:4."""
    fragments: Count | None = None
    """In how many parts, in turns, the model agrees at the outermost level."""
    delay: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """How many agreements later a mean is applied, while training goes on; 0 to fragments."""
    correction: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    """How much of the way to a late mean a worker goes; all of it where not given."""
    partition: str = "reshuffled"
    """Who owns which samples: reshuffled every epoch (the paper), fixed, by-label,
    dirichlet:ALPHA, column:FILE."""
    exhausted: Literal["repeat", "leave"] = "repeat"
    """What a worker with less data than others does in a round: reads on from its start, or leaves
    the round early."""
    slowdown: tuple[Positive, ...] = ()
    """How much longer each worker takes for a step; slow ones take fewer steps in a round."""
    weighting: Literal["equal", "samples", "fednova"] = "equal"
    """What an update weighs in the mean: alike, by the worker's data, or that normalised by its
    steps."""
    epochs: Positive | None = None
    """The budget, in passes over the training set by all workers together."""
    batch: Count | None = None
    """B: samples of a worker's mini-batch."""
    lr: Positive | None = None
    """Learning rate of a single worker whose batch is lr_batch."""
    lr_batch: Count | None = None
    """The batch for which lr is meant; the peak is lr K B / lr_batch."""
    lr_scaling: Literal["linear", "sqrt", "local", "local-sqrt", "none"] | None = None
    """How the rate grows with the batch: with the global one (linear), its square root (sqrt), the
    local one (local), its square root (local-sqrt), or not; linear where the method has no other.
    """
    lr_warmup: NotNegative | None = None
    """Epochs over which the rate rises from lr to its peak; 5 in 300 where not given."""
    lr_decay_at: tuple[Share, ...] | None = None
    """Shares of the run after which the rate is multiplied by lr_decay; the task's (usually 0.5 and
    0.75) where not given."""
    lr_decay: Share = 0.1
    """What a decay multiplies by."""
    lr_schedule: Literal["steps", "cosine", "cyclic"] | None = None
    """How the rate falls: by steps (the paper), a cosine, or a cosine with warm restarts."""
    lr_cycles: Count = 4
    """How many cycles a cyclic rate has; a snapshot of the agreed model is kept of each."""
    lr_floor: Share = 0.0
    """Where a cosine ends, as a share of the peak."""
    optimizer: Literal["sgd", "adam", "adamw", "lars", "larc", "sign"] | None = None
    """Of the local steps; sgd where the method has no other."""
    trust: Positive = 0.001
    """Trust coefficient of lars and larc."""
    clip: Positive | None = None
    """Largest norm of a worker's gradient; the task's, or none, where not given."""
    noise: NotNegative = 0.0
    """η of gradient noise of variance η / (1 + t)^γ; none where 0."""
    noise_decay: NotNegative = 0.55
    """γ of gradient noise."""
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    """Local momentum of sgd, lars, larc and sign; the task's (usually 0.9) where not given."""
    nesterov: bool = True
    """Nesterov momentum, as in the paper."""
    weight_decay: NotNegative | None = None
    """On all parameters but those of batch norm."""
    batch_norm: Literal["mean", "recalibrated", "own"] = "mean"
    """Of the agreed model: the workers' mean, re-estimated on training data, or worker 0's."""
    evaluate_local: Literal["end", "always", "never"] = "end"
    """When every worker's own model is evaluated too."""
    evaluate_every: Positive = 1.0
    """Epochs between evaluations."""
    init: str | None = None
    """A safetensors file with the starting weights, such as the model.safetensors of another run.
    """
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """bfloat16 is autocast: weights stay in float32."""
    channels_last: bool = False
    """Memory format of images and filters."""
    compile: bool = False
    """torch.compile the models."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    seed: int = 0
    """Of everything that is random."""

    def completed(self, card: Card) -> Run:
        """All that was left open filled in, and checked against the task: what a run's folder
        keeps.
        """
        defaults = card.defaults
        topology = self._topology()
        preset = {**PRESETS, **method(self.method).preset}
        run = msgspec.structs.replace(
            self,
            **{name: _default(getattr(self, name), preset[name]) for name in PRESETS},
            task=self.task,
            model=self.model or card.default_model,
            workers=topology.workers,
            topology=str(topology),
            local_steps=self._local_steps(topology),
            epochs=_default(self.epochs, float(defaults.epochs)),
            batch=_default(self.batch, defaults.batch),
            lr=_default(self.lr, preset.get("lr", defaults.learning_rate)),
            clip=_default(self.clip, defaults.clip),
            momentum=_default(self.momentum, defaults.momentum),
            lr_decay_at=_default(self.lr_decay_at, defaults.lr_decay_at),
            lr_warmup=_default(self.lr_warmup, defaults.lr_warmup),
            lr_batch=_default(self.lr_batch, defaults.lr_batch),
            weight_decay=_default(self.weight_decay, defaults.weight_decay),
        )
        if run.lr_warmup is None:
            run = msgspec.structs.replace(run, lr_warmup=_known(run.epochs) * 5 / 300)
        plan = Plan(run, self.train_samples or card.train_size)
        plan.check()
        return run

    def _topology(self) -> Topology:
        if self.topology is None:
            return Topology.parse(self.workers or 8)
        topology = Topology.parse(self.topology)
        if self.workers not in (None, topology.workers):
            raise UserError(
                f"workers = {self.workers}, but topology {topology} has {topology.workers}; "
                "give one of them, or two that match"
            )
        return topology

    def _local_steps(self, topology: Topology) -> tuple[int, ...]:
        chosen = method(self.method)
        if chosen.several_levels and topology.levels < 2:
            raise UserError(
                f"method {self.method} needs blocks, but topology {topology} is flat; "
                f"write, for example, --topology {max(1, topology.workers // 2)}x2"
            )
        given = self.local_steps
        if given is None:
            given = (8,) if topology.levels == 1 else (2,) * topology.levels
            if "local_steps" not in chosen.uses:
                given = (1,) * topology.levels
        if len(given) != topology.levels:
            raise UserError(
                f"local_steps has {len(given)} numbers for the {topology.levels} levels of "
                f"topology {topology}; give one for each, innermost first (H, H^b, ...)"
            )
        return given


def _default(value: T | None, default: T) -> T:
    return default if value is None else value


class Plan:
    """What follows from a completed run and the size of its training set: steps, learning rate,
    schedules.

    Args:
        run: completed.
        samples: N, training samples.
    """

    def __init__(self, run: Run, samples: int) -> None:
        self.run = run
        self.samples = samples
        self.topology = Topology.parse(_known(run.topology))
        self.method: Method = method(run.method)

    @property
    def batch(self) -> int:
        """Samples of one step of all workers: K B."""
        return self.topology.workers * _known(self.run.batch)

    @property
    def steps_per_epoch(self) -> float:
        """N / (K B), not rounded: budgets are counted in samples."""
        return self.samples / self.batch

    @property
    def steps(self) -> int:
        """Local steps of each worker in the whole run."""
        return math.floor(_known(self.run.epochs) * self.steps_per_epoch + 1e-9)

    def step_at(self, epochs: float) -> int:
        """The first step at or after that many epochs."""
        return math.ceil(epochs * self.steps_per_epoch - 1e-9)

    def _at_share(self, share: float) -> int:
        """The first step at or after that share of the run's steps."""
        return math.ceil(share * self.steps - 1e-9)

    @property
    def cycle(self) -> int:
        """Steps of one cycle of the learning rate: the run, where it has none."""
        cycles = self.run.lr_cycles if self.run.lr_schedule == "cyclic" else 1
        return max(1, math.ceil(self.steps / cycles))

    @cached_property
    def learning_rate(self) -> LearningRate:
        run = self.run
        lr, base = _known(run.lr), _known(run.lr_batch)
        scaling = SCALINGS[_known(run.lr_scaling)]
        scale = scaling(self.batch / base, _known(run.batch) / base)
        peak = lr * scale
        warmup_steps = self.step_at(_known(run.lr_warmup)) if scale > 1 else 0
        if run.lr_schedule != "steps":
            return Cosine(lr, peak, warmup_steps, self.cycle, peak * run.lr_floor)
        return StepDecay(
            start=lr,
            peak=peak,
            warmup_steps=warmup_steps,
            decays=tuple(sorted(self._at_share(share) for share in _known(run.lr_decay_at))),
            factor=run.lr_decay,
        )

    @property
    def switch(self) -> int:
        """The first step of the second phase, for methods that have one."""
        text = self.run.switch
        if text == "first-decay":
            if not self.run.lr_decay_at:
                raise UserError(
                    "switch first-decay needs a decay, but lr_decay_at is empty; "
                    "give --switch epoch:E, step:T or share:S"
                )
            if not isinstance(self.learning_rate, StepDecay):
                raise UserError(
                    "switch first-decay needs a learning rate that falls in steps, but lr_schedule "
                    f"is {self.run.lr_schedule}; give --switch epoch:E, step:T or share:S"
                )
            return self.learning_rate.decays[0]
        kind, _, value = text.partition(":")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if kind not in ("epoch", "step", "share") or not math.isfinite(number) or number < 0:
            raise UserError(
                f"switch {text!r} is not understood; write first-decay, epoch:E, step:T or share:S"
            )
        whole = {"epoch": _known(self.run.epochs), "step": self.steps, "share": 1}[kind]
        if number > whole:
            raise UserError(
                f"switch {text} lies outside the run of {_known(self.run.epochs):g} epochs "
                f"({self.steps} steps); give a point inside it"
            )
        if kind == "step":
            return math.ceil(number)
        return self.step_at(number) if kind == "epoch" else self._at_share(number)

    @property
    def schedules(self) -> list[Schedule]:
        """One for each level, innermost first."""
        run = self.run
        local_steps = _known(run.local_steps)
        uses = self.method.uses
        period = run.step_warmup or float(math.prod(local_steps))
        moments = Moments(
            switch=self.switch if "switch" in uses else 0,
            warmup_steps=self.step_at(period) if "step_warmup" in uses else 0,
            warmup_shape=run.step_warmup_shape,
            lr_warmup_steps=self.learning_rate.warmup_steps,
            period=max(1, self.step_at(run.adapt_every or 1.0)),
            alpha=run.qsr_alpha or 0.3 * self.learning_rate.peak,
            waiting=run.waiting,
            cycle=self.cycle,
        )
        return [self.method.schedule(length, moments) for length in local_steps]

    def check(self) -> None:
        """Refuses what cannot be trained."""
        if self.samples < self.batch:
            raise UserError(
                f"{self.samples} training samples are too few for {self.topology.workers} workers "
                f"x batch {self.run.batch} = {self.batch} samples a step; "
                "use fewer workers or a smaller batch"
            )
        if self.steps < 1:
            raise UserError(
                f"{self.run.epochs:g} epochs of {self.samples} samples are less than one step of "
                f"{self.batch}; train for longer"
            )
        if _known(self.run.lr_warmup) > _known(self.run.epochs):
            raise UserError(
                f"lr_warmup of {self.run.lr_warmup:g} epochs outlasts the run of "
                f"{self.run.epochs:g}; give a shorter one, 0 for none"
            )
        if self.run.switch != "first-decay":
            _ = self.switch  # what is no point of the run is refused, whether it is used or not
        self._check_family()
        if self.schedules[0](Progress()) != 1 and self.run.agree_on == "gradients":
            raise UserError(
                f"agree_on gradients needs H = 1 at the start, but {self.run.method} starts with "
                f"H = {self.schedules[0](Progress())}; use models, or auto"
            )

    @property
    def delay(self) -> Delay:
        """How agreements are spread over time."""
        run = self.run
        return Delay(_known(run.fragments), _known(run.delay), _known(run.correction))

    @property
    def exact(self) -> bool:
        """Whether the outermost level is the plain mean of models, so that gradients may be
        averaged in place of them.
        """
        run = self.run
        plain = run.compression == "none" and run.outer == "average" and self.delay.none
        return plain and not self.weighs

    @property
    def weighs(self) -> bool:
        """Whether updates weigh differently."""
        return self.run.weighting != "equal"

    def _check_family(self) -> None:
        """Refuses what does not go together."""
        run, topology = self.run, self.topology
        _ = self.delay
        rules_of(_known(run.inner_state))
        owned = Partition.parse(run.partition).owned
        if not self.exact and run.agree_on == "gradients":
            raise UserError(
                "agree_on gradients needs the plain mean of models, but the outermost level has "
                f"compression {run.compression}, outer {run.outer}, delay {run.delay}, fragments "
                f"{run.fragments}, weighting {run.weighting}; use models, or auto"
            )
        if run.slowdown and len(run.slowdown) != topology.workers:
            raise UserError(
                f"slowdown has {len(run.slowdown)} numbers for {topology.workers} workers; "
                "give one for each"
            )
        if (run.slowdown or self.weighs or run.exhausted == "leave") and topology.levels > 1:
            raise UserError(
                f"slowdown, weighting and exhausted leave need one level, but topology {topology} "
                f"has {topology.levels}; use --topology {topology.workers}"
            )
        if run.slowdown and run.exhausted == "leave":
            raise UserError("slowdown and exhausted leave both set the steps of a round; give one")
        if run.exhausted == "leave" and not owned:
            raise UserError(
                "exhausted leave needs workers that own their samples; give --partition fixed, "
                "by-label, dirichlet:ALPHA or column:FILE"
            )
        if self.method.grows_batch and not (self.exact and run.agree_on != "models"):
            raise UserError(
                f"{run.method} averages gradients: it needs the plain mean, and agree_on auto"
            )
        if self.method.grows_batch and any(h > 1 for h in _known(run.local_steps)[1:]):
            raise UserError(
                f"{run.method} needs all levels to agree at once; give 1 for those outside"
            )


def _known(value: T | None) -> T:
    if value is None:
        raise AssertionError("the run has not been completed")
    return value


def to_json(run: Run) -> bytes:
    return msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"


def from_json(path: Path) -> Run:
    """The run in a JSON file; unknown keys and wrong types are refused by their place."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Run)
    except OSError as error:
        raise UserError(
            f"{path}: {os.strerror(error.errno or 0)}; give a file with a run as JSON"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from None
