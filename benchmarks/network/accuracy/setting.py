"""What all arms have in common: data, model, learning rate, number of steps."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.network.refusal import Refused
from localsgd.schedule.progress import fraction
from localsgd.train.config.learning_rate import StepDecay

NODES = 4
DECAYS = (0.5, 0.75)
"""Fractions of the run at which the rate decays; post-local SGD leaves H = 1 at the first."""
TEST_IMAGES = 10_000
WARMUP = 0.0625
"""Fraction of the run in which the rate rises, from a tenth of its peak."""


@dataclass(frozen=True)
class Setting:
    """Everything but links, arms and seeds that a run depends on.

    Args:
        network: by its name in `localsgd.train.data.models`.
        images: N, a subset of CIFAR-10's training images with as many of each class as of another.
        epochs: passes over it by all workers together.
        batch: B of each worker.
        local_steps: H.
        step_warmup: the part of the run with H = 1, for local SGD after a warm-up.
        learning_rate: its peak.
        judged_every: epochs from one accuracy to the next.
        judged: how many of the first test images give it.
        judged_last: the same for the accuracy at the end.
    """

    network: str = "resnet20"
    images: int = 1024
    epochs: int = 128
    batch: int = 32
    local_steps: int = 8
    step_warmup: float = 0.125
    learning_rate: float = 0.1
    judged_every: int = 16
    judged: int = 1000
    judged_last: int = 10_000

    def __post_init__(self) -> None:
        if self.images % (NODES * self.batch) or self.images < 1 or self.epochs < 1:
            raise Refused(
                f"{self.epochs} epochs of {self.images} images are no whole number of steps of "
                f"{NODES} x {self.batch}; give a multiple of {NODES * self.batch} images, and 1 "
                "epoch or more"
            )
        if self.judged_every < 1 or self.epochs % self.judged_every:
            raise Refused(
                f"{self.epochs} epochs can't be judged after every {self.judged_every} of them; "
                "give --judged-every a divisor of --epochs"
            )
        if not 0 <= self.step_warmup < 1:
            raise Refused(
                f"a warm-up of H can't take {self.step_warmup:g} of the run; give a part of it, "
                "at least 0 and less than 1"
            )
        if not 1 <= self.judged <= self.judged_last <= TEST_IMAGES:
            raise Refused(
                f"{self.judged} test images on the way and {self.judged_last} at the end "
                f"can't be judged; give 1 to {TEST_IMAGES}, and no fewer at the end"
            )

    @property
    def steps_per_epoch(self) -> int:
        return self.images // (NODES * self.batch)

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def switch(self) -> int:
        """The first step of post-local SGD's second phase: that of the first decay."""
        return fraction(DECAYS[0], self.steps)

    @property
    def warmed(self) -> int:
        """The first step of H local steps after a warm-up of H."""
        return fraction(self.step_warmup, self.steps)

    def rate(self) -> StepDecay:
        """γ at every step, the same for all arms."""
        peak = self.learning_rate
        decays = tuple(fraction(part, self.steps) for part in DECAYS)
        return StepDecay(peak / 10, peak, round(WARMUP * self.steps), decays)
