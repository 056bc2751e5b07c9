"""What is trained and measured, and what counts as a claim that holds. Written before the runs.

K workers of batch B on N samples, Nesterov momentum 0.9, the peak rate scaled linearly with K B and
reached over the first 1/60 of the run, divided by 10 at half and at three quarters of it, as in the
paper. Phase 1 (H = 1, until the first decay) is trained once for each seed; the arms H = 1, 2, 4
and 16 go on from its very workers, with their momentum and the same order of samples. (The paper
resumes one epoch earlier; with the same order that gives the same bits.) Two more arms start from
scratch: post-local SGD with H = 16 from another seed's weights and order, and mini-batch SGD with
the small batch of 2 B, its rate scaled alike.

All models are averaged ones, with batch-norm statistics estimated again on training data. Every
number is that of the end of training; nothing is selected by a test score. The settings were chosen
by the cost of a run and by how well mini-batch SGD fits the training data, before any other arm was
compared.

- λ max: the largest eigenvalue by value of the Hessian of the mean loss, without weight decay
  (Lanczos, residual below 1e-3 of it), on samples drawn once and never augmented.
- Curves: ten Gaussian directions shared by all models of a seed, scaled filter by filter; the mean
  rise of the loss over the steps up to 0.5 on both sides.
- Lines: batch norm estimated again at every point. Flatter on one side: the loss rises less from 0
  to -0.5 (beyond post-local SGD) than from 1 to 1.5 (beyond mini-batch SGD).
- Spread of a round: the trace of the covariance of models after 16 steps from the end of phase 1,
  over 12 orders of samples.

A claim is about a difference, paired over seeds, which share phase 1, directions and samples. It is
judged by the one rule of `experiments/claims.py`, which came after the runs: before, each interval
decided by itself, whatever the number of seeds and of claims.
"""

from __future__ import annotations

from dataclasses import dataclass

from localsgd.train.config.complete import complete_run
from localsgd.train.config.run import Run
from localsgd.train.data.task import Card

LOCAL_STEPS = (1, 2, 4, 16)
MANY = 16
"""The H of the curves, of the lines between models and of the arm from scratch."""
FORKED = tuple(f"H={h}" for h in LOCAL_STEPS)
"""The arms that go on from the workers at the end of phase 1."""
ARMS = (*FORKED, "scratch H=16", "small batch")
SETS = ("train", "test")
"""The data that is measured on."""
DIRECTIONS = 10
CURVE_POINTS = 9
"""Points from -1 to 1 along a filter-normalised direction."""
NEAR = 0.5
"""The rise of the loss is averaged over steps up to this length."""
LINE_POINTS = 21
"""Points from -0.5 to 1.5; 0 is post-local SGD, 1 mini-batch SGD."""
OTHER_SEED = 1000
"""Added to the seed of the arm from scratch."""
REPEATS = 12
"""Rounds repeated with other samples from the end of phase 1."""


@dataclass(frozen=True)
class Setting:
    """One task and how it is trained.

    Args:
        name, task, model: see `localsgd tasks`.
        train_samples: a balanced part of the training data; all where `None`.
        workers: K.
        batch: B, of one worker.
        epochs: of the whole run.
        lr, lr_batch: the peak rate is lr K B / lr_batch.
        every: epochs between two measurements in phase 2.
        samples: of training and of test data, at most, on which the loss's shape is measured; all
            where `None`.
        seeds: how many, from 0.
    """

    name: str
    task: str
    model: str
    train_samples: int | None
    workers: int
    batch: int
    epochs: float
    lr: float
    lr_batch: int
    every: float
    samples: int | None
    seeds: int

    def run(self, arm: str, seed: int) -> Run:
        """What the arm trains, not completed."""
        small = arm == "small batch"
        scratch = arm.startswith("scratch")
        local_steps = int(arm.rpartition("=")[2]) if "=" in arm else 1
        return Run(
            task=self.task,
            model=self.model,
            train_samples=self.train_samples,
            method="mini-batch" if local_steps == 1 else "post-local",
            workers=2 if small else self.workers,
            local_steps=None if local_steps == 1 else (local_steps,),
            epochs=self.epochs,
            batch=self.batch,
            lr=self.lr,
            lr_batch=self.lr_batch,
            batch_norm="recalibrated",
            reduction="ordered",
            seed=seed + OTHER_SEED if scratch else seed,
        )

    def completed(self, arm: str, seed: int, card: Card) -> Run:
        return complete_run(self.run(arm, seed), card)


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            name="digits",
            task="digits",
            model="small-cnn-8",
            train_samples=None,
            workers=8,
            batch=8,
            epochs=40,
            lr=0.05,
            lr_batch=16,
            every=2,
            samples=None,
            seeds=4,
        ),
        Setting(
            name="fashion-mlp",
            task="fashion-mnist",
            model="mlp-64",
            train_samples=4000,
            workers=8,
            batch=32,
            epochs=60,
            lr=0.0125,
            lr_batch=64,
            every=3,
            samples=2000,
            seeds=6,
        ),
        Setting(
            name="fashion-cnn",
            task="fashion-mnist",
            model="small-cnn-8",
            train_samples=2000,
            workers=8,
            batch=16,
            epochs=60,
            lr=0.1,
            lr_batch=32,
            every=5,
            samples=500,
            seeds=3,
        ),
    )
}
