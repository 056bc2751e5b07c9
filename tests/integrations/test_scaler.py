"""A step that a gradient scaler skips counts: syncs and learning rates stay where they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.distributed.harness import Crew
from tests.integrations import by_hand, test_examples
from tests.integrations.frameworks import SECONDS, Killed, killed_at, launched
from tests.integrations.frameworks import example as program
from tests.integrations.test_examples import EPOCHS, Example, arguments, example

__all__ = ["example"]

WORKER, STEP = 1, 2
"""Whose gradients overflow, and in which step, counted from 0."""


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**10)


@contextmanager
def overflowing() -> Iterator[None]:
    """In one step of one worker the loss is infinite."""
    whole, calls = torch.nn.functional.cross_entropy, 0

    def sometimes(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += torch.is_grad_enabled()
        loss = whole(*args, **kwargs)
        return loss * torch.inf if (dist.get_rank(), calls) == (WORKER, STEP + 1) else loss

    with mock.patch("torch.nn.functional.cross_entropy", sometimes):
        yield


@contextmanager
def scaled(framework: str) -> Iterator[None]:
    """A scaler on the CPU, which the frameworks have for GPUs only."""
    if framework == "lightning":
        from lightning.pytorch import Trainer
        from lightning.pytorch.plugins import MixedPrecision

        made, fit = Trainer.__init__, Trainer.fit

        def with_scaler(trainer: Any, **given: Any) -> None:
            given.pop("precision", None)
            made(trainer, **given, plugins=[MixedPrecision("16-mixed", "cpu", scaler())])

        def in_double(trainer: Any, module: Any, *args: Any, **given: Any) -> None:
            fit(trainer, module.double(), *args, **given)

        with mock.patch.multiple(Trainer, __init__=with_scaler, fit=in_double):
            yield
        return
    from accelerate import Accelerator

    set_up = Accelerator.__init__

    def and_scaler(accelerator: Any, *args: Any, **given: Any) -> None:
        set_up(accelerator, *args, **given)
        accelerator.scaler = scaler()

    with mock.patch.object(Accelerator, "__init__", and_scaler):
        yield


def run_scaled(framework: str, name: str, given: dict[str, Any]) -> None:
    """Cut off after the overflow and a checkpoint, and taken up again."""
    with launched(), scaled(framework), killed_at(17), overflowing(), suppress(Killed):
        program(name).main(**given)
    with launched(), scaled(framework):
        program(name).main(**given)


def test_it_has_the_bits_of_the_loop_by_hand(crew: Crew, tmp_path: Path, example: Example) -> None:
    job = (example.framework, example.program, arguments(tmp_path, accumulate=1))
    crew.run(run_scaled, job, SECONDS)
    weights, _ = by_hand.trained(
        example.order,
        epochs=EPOCHS,
        make=example.make,
        schedule=partial(example.schedule, steps=EPOCHS * 30),
        skipped=(WORKER, STEP),
    )
    test_examples.assert_weights(example, tmp_path, weights)
