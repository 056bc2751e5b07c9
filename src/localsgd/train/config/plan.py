"""The plan of a run: steps, learning rate and schedules, from its settings and training set."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from localsgd.averaging.delay import Delay
from localsgd.averaging.inner_state import rules_of
from localsgd.averaging.topology import Topology
from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.reduce.sign import Sign
from localsgd.schedule.progress import Progress, Schedule
from localsgd.train.config.learning_rate import SCALINGS, Cosine, LearningRate, StepDecay
from localsgd.train.config.methods import Method, Moments, method
from localsgd.train.config.parts import check_parts
from localsgd.train.data.sampling.partition import Partition

if TYPE_CHECKING:
    from localsgd.train.config.run import Run

T = TypeVar("T")


def known(value: T | None) -> T:
    """A setting of a completed run."""
    if value is None:
        raise AssertionError("the run has not been completed")
    return value


class Plan:
    """Steps, learning rate and schedules of a completed run.

    Args:
        run: completed.
        samples: N, training samples.
    """

    def __init__(self, run: Run, samples: int) -> None:
        self.run = run
        self.samples = samples
        self.topology = Topology.parse(known(run.topology))

    @cached_property
    def method(self) -> Method:
        """How workers synchronise. Its package must be here; the rate doesn't depend on it."""
        return method(self.run.method)

    @property
    def batch(self) -> int:
        """Samples of one step of all workers: K B."""
        return self.topology.workers * known(self.run.batch)

    @property
    def steps_per_epoch(self) -> float:
        """N / (K B), not rounded: budgets are counted in samples."""
        return self.samples / self.batch

    @property
    def steps(self) -> int:
        """Local steps that each worker takes in the whole run."""
        return math.floor(known(self.run.epochs) * self.steps_per_epoch + 1e-9)

    def step_at(self, epochs: float) -> int:
        """The first step at or after this many epochs."""
        return math.ceil(epochs * self.steps_per_epoch - 1e-9)

    def step_at_share(self, share: float) -> int:
        """The first step at or after this fraction of the run's steps."""
        return math.ceil(share * self.steps - 1e-9)

    @property
    def cycle(self) -> int:
        """Steps of one cycle of the learning rate; the whole run if it has no cycles."""
        cycles = self.run.lr_cycles if self.run.lr_schedule == "cyclic" else 1
        return max(1, math.ceil(self.steps / cycles))

    @cached_property
    def lr_scale(self) -> float:
        """The factor by which the peak of the learning rate is larger than `lr`."""
        base = known(self.run.lr_batch)
        scaling = SCALINGS[known(self.run.lr_scaling)]
        return scaling(self.batch / base, known(self.run.batch) / base)

    @cached_property
    def learning_rate(self) -> LearningRate:
        run = self.run
        lr = known(run.lr)
        peak = lr * self.lr_scale
        warmup_steps = self.step_at(known(run.lr_warmup)) if self.lr_scale > 1 else 0
        if run.lr_schedule != "steps":
            return Cosine(lr, peak, warmup_steps, self.cycle, peak * run.lr_floor)
        return StepDecay(
            start=lr,
            peak=peak,
            warmup_steps=warmup_steps,
            decays=tuple(sorted(self.step_at_share(share) for share in known(run.lr_decay_at))),
            factor=run.lr_decay,
        )

    @property
    def step_warmup(self) -> float:
        """Epochs over which H grows, for methods with a local-step warm-up."""
        return self.run.step_warmup or float(math.prod(known(self.run.local_steps)))

    @property
    def switch(self) -> int:
        """The first step of the second phase, for methods that have one."""
        text = self.run.switch
        if text == "first-decay":
            if not self.run.lr_decay_at:
                raise UserError(
                    "switch first-decay needs a decay, but lr_decay_at is empty; "
                    "give --switch epoch:E, step:T or fraction:S"
                )
            if not isinstance(self.learning_rate, StepDecay):
                raise UserError(
                    "switch first-decay needs a learning rate that falls in steps, but lr_schedule "
                    f"is {self.run.lr_schedule}; give --switch epoch:E, step:T or fraction:S"
                )
            return self.learning_rate.decays[0]
        kind, _, value = text.partition(":")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if kind not in ("epoch", "step", "fraction") or not math.isfinite(number) or number < 0:
            raise UserError(
                f"switch {text!r} is not understood; write first-decay, epoch:E, step:T or "
                f"fraction:S"
            )
        whole = {"epoch": known(self.run.epochs), "step": self.steps, "fraction": 1}[kind]
        if number > whole:
            raise UserError(
                f"switch {text} lies outside the run of {plural(known(self.run.epochs), 'epoch')} "
                f"({plural(self.steps, 'step')}); give a point inside it"
            )
        if kind == "step":
            return math.ceil(number)
        return self.step_at(number) if kind == "epoch" else self.step_at_share(number)

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules, one for each level, innermost first."""
        run = self.run
        local_steps = known(run.local_steps)
        uses = self.method.uses
        moments = Moments(
            switch=self.switch if "switch" in uses else 0,
            warmup_steps=self.step_at(self.step_warmup) if "step_warmup" in uses else 0,
            warmup_shape=run.step_warmup_shape,
            lr_warmup_steps=self.learning_rate.warmup_steps,
            period=max(1, self.step_at(run.adapt_every or 1.0)),
            alpha=run.qsr_alpha or 0.3 * self.learning_rate.peak,
            waiting=run.waiting,
            cycle=self.cycle,
            options=run.options,
        )
        return [self.method.schedule(length, moments) for length in local_steps]

    def check(self) -> None:
        """Raises if the run can't be trained."""
        if self.samples < self.batch:
            raise UserError(
                f"{plural(self.samples, 'training sample')}: too few for "
                f"{plural(self.topology.workers, 'worker')} x batch {self.run.batch} = "
                f"{plural(self.batch, 'sample')} a step; use fewer workers or a smaller batch"
            )
        if self.steps < 1:
            raise UserError(
                f"{plural(known(self.run.epochs), 'epoch')} of {plural(self.samples, 'sample')}: "
                f"less than one step of {self.batch}; train for longer"
            )
        if known(self.run.lr_warmup) > known(self.run.epochs):
            raise UserError(
                f"lr_warmup of {plural(known(self.run.lr_warmup), 'epoch')} outlasts the run of "
                f"{self.run.epochs:g}; give a shorter one, 0 for none"
            )
        if "step_warmup" in self.method.uses and self.step_warmup > known(self.run.epochs):
            usual = "" if self.run.step_warmup else " (H epochs, if not given)"
            raise UserError(
                f"step_warmup of {plural(self.step_warmup, 'epoch')}{usual} outlasts the run of "
                f"{self.run.epochs:g}, so that H would never be what local_steps says; give a "
                "shorter one by --step-warmup"
            )
        if self.run.lr_schedule == "cyclic" and (self.run.lr_cycles - 1) * self.cycle >= self.steps:
            raise UserError(
                f"{self.run.lr_cycles} cycles of {plural(self.cycle, 'step')} do not fit into the "
                f"{plural(self.steps, 'step')} of the run; give lr_cycles "
                f"{math.ceil(self.steps / self.cycle)}"
            )
        if self.run.switch != "first-decay":
            _ = self.switch  # what is no point of the run is refused, whether it is used or not
        self._check_family()
        innermost = self.schedules[0]
        if self.run.average == "gradients" and (first := innermost(self._start())) != 1:
            raise UserError(
                f"average gradients needs H = 1 at the start, but {self.run.method} starts with "
                f"H = {first}; use models, or auto"
            )

    def _start(self) -> Progress:
        """The progress that schedules see at the first step."""
        return Progress(epoch=0.0, fraction=0.0, learning_rate=self.learning_rate(0))

    @property
    def delay(self) -> Delay:
        """The fragments and delay of the outermost level."""
        run = self.run
        return Delay(known(run.fragments), known(run.delay), known(run.correction))

    @property
    def exact(self) -> bool:
        """Whether the outermost level is the plain mean of models, so gradients may be averaged."""
        run = self.run
        plain = run.compression == "none" and run.outer == "average" and self.delay.none
        return plain and not self.weighs and not self.gossips

    @property
    def averages_gradients(self) -> bool:
        """Whether gradients are averaged, not models, while all levels sync after every step."""
        return self.run.average != "models" and self.exact

    @property
    def gossips(self) -> bool:
        """Whether members of the outermost level average with neighbours, and so differ."""
        return self.run.neighbours != "all"

    @property
    def weighs(self) -> bool:
        """Whether updates have different weights."""
        return self.run.weighting != "equal"

    def _check_family(self) -> None:
        """Raises if settings contradict each other."""
        run, topology = self.run, self.topology
        _ = self.delay
        rules_of(known(run.inner_state))
        _ = Sign(run.sign_scales)
        check_parts(run)
        owned = Partition.parse(run.partition).owned
        if run.batched and run.compile:
            raise UserError("batched and compile can't be combined; leave one of them out")
        if run.compression != "none" and run.average == "gradients":
            raise UserError(
                f"compression {run.compression} compresses updates of models, but average is "
                "gradients; use models, or auto"
            )
        if not self.exact and run.average == "gradients":
            raise UserError(
                "average gradients needs the plain mean of models, but the outermost level has "
                f"outer {run.outer}, delay {run.delay}, fragments {run.fragments}, weighting "
                f"{run.weighting}, neighbours {run.neighbours}; use models, or auto"
            )
        if self.gossips:
            self._check_gossip()
        if run.slowdown and len(run.slowdown) != topology.workers:
            raise UserError(
                f"slowdown has {plural(len(run.slowdown), 'number')} for "
                f"{plural(topology.workers, 'worker')}; give one for each"
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
        if self.method.grows_batch and not (self.exact and run.average != "models"):
            raise UserError(
                f"{run.method} averages gradients: it needs the plain mean, and average auto"
            )
        if self.method.grows_batch and (run.slowdown or run.exhausted == "leave"):
            raise UserError(
                f"{run.method} steps once for all workers and needs equally many batches of each; "
                "leave out slowdown and exhausted leave"
            )
        if self.method.grows_batch and run.inner_state:
            raise UserError(
                "inner_state says what becomes of states when models are averaged, and "
                f"{run.method} averages none; leave it out"
            )
        if self.method.grows_batch and any(h > 1 for h in known(run.local_steps)[1:]):
            raise UserError(
                f"{run.method} needs all levels to average at once; give 1 for those outside"
            )

    def _check_gossip(self) -> None:
        """Raises for what needs a model that all members of the outermost level share."""
        run = self.run
        needs = {
            f"compression {run.compression}": run.compression != "none",
            f"outer {run.outer}": run.outer != "average",
            "delay or fragments": not self.delay.none,
            f"weighting {run.weighting}": self.weighs,
            f"inner_state {run.inner_state}": "average" in known(run.inner_state),
            f"method {run.method}": self.method.grows_batch,
            f"topology {self.topology}, of unequal blocks,": bool(self.topology.unequal),
        }
        found = [what for what, given in needs.items() if given]
        if found:
            raise UserError(
                f"with neighbours {run.neighbours} no two members need hold the same model, but "
                f"{found[0]} needs one that all share; leave one of them out"
            )
