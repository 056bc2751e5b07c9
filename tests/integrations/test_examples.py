"""The examples end with the bits of the loop by hand, wherever they are cut off on their way."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.distributed.harness import Crew
from tests.integrations import by_hand
from tests.integrations.frameworks import SECONDS, run_example

BATCH, EPOCHS, SAMPLES, LOCAL_STEPS = 24, 2, 1440, 4


@dataclass(frozen=True)
class Example:
    """What is particular to a framework.

    Args:
        order: the batches of a worker in an epoch.
        make: the optimizer.
        schedule: of its learning rate, for a number of steps in all.
        weights: the final ones, from the folder of the run.
        saves: whether a checkpoint is written after this step, of so many micro-batches each.
        after_sync: what crosses right after a sync, before the next batch.
    """

    framework: str
    program: str
    order: by_hand.Order
    make: Callable[[torch.nn.Module], torch.optim.Optimizer]
    schedule: Callable[[torch.optim.Optimizer, int], Any]
    weights: Callable[[Path], dict[str, Tensor]]
    saves: Callable[[int, int], bool] = lambda step, accumulate: step % 5 == 0
    after_sync: tuple[str, ...] = ()


def dealt(worker: int, epoch: int, seed: int) -> list[Tensor]:
    """Batches of the shuffled whole, dealt out in turns (accelerate, and so the Trainer)."""
    return list(by_hand.permutation(SAMPLES, seed + epoch).split(BATCH))[worker::2]


def striped(worker: int, epoch: int) -> tuple[Tensor, ...]:
    """Batches of every second sample of the shuffled whole (Lightning)."""
    return by_hand.permutation(SAMPLES, epoch)[worker::2].split(BATCH)


def nesterov(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.005, weight_decay=0.0, fused=True)


def halved(inner: torch.optim.Optimizer, steps: int) -> Any:
    return torch.optim.lr_scheduler.StepLR(inner, step_size=20, gamma=0.5)


def falling(inner: torch.optim.Optimizer, steps: int) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(inner, lambda step: (steps - step) / steps)


def from_safetensors(out: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(out / "model.safetensors")


def from_checkpoint(out: Path) -> dict[str, Tensor]:
    return torch.load(out / "final.ckpt", weights_only=True)["state_dict"]


ACCELERATE = Example(
    "accelerate",
    "with_accelerate",
    partial(dealt, seed=0),
    nesterov,
    halved,
    from_safetensors,
    saves=lambda step, accumulate: step * accumulate % 15 == 0,
)
TRAINER = Example(
    "transformers", "with_trainer", partial(dealt, seed=42), adam, falling, from_safetensors
)
LIGHTNING = Example(
    "lightning",
    "with_lightning",
    striped,
    nesterov,
    halved,
    from_checkpoint,
    after_sync=("allreduce_",),  # whether any process is told to end
)


@pytest.fixture(params=[ACCELERATE, TRAINER, LIGHTNING], ids=lambda example: example.framework)
def example(request: pytest.FixtureRequest) -> Example:
    if importlib.util.find_spec(request.param.framework) is None:
        pytest.skip(f"needs localsgd[{request.param.framework}]")
    return request.param


def arguments(out: Path, accumulate: int) -> dict[str, Any]:
    return {"out": out, "epochs": EPOCHS, "accumulate": accumulate, "dtype": torch.float64}


def assert_ended_by_hand(example: Example, out: Path, accumulate: int) -> None:
    weights, _ = by_hand.trained(
        example.order,
        epochs=EPOCHS,
        accumulate=accumulate,
        local_steps=LOCAL_STEPS,
        make=example.make,
        schedule=partial(example.schedule, steps=EPOCHS * 30 // accumulate),
    )
    assert_weights(example, out, weights)


def assert_weights(example: Example, out: Path, weights: dict[str, Tensor]) -> None:
    found = {name.removeprefix("layers."): value for name, value in example.weights(out).items()}
    assert found.keys() == weights.keys()
    for name, expected in weights.items():
        assert torch.equal(found[name], expected), name


@pytest.mark.parametrize("accumulate", [1, 3])
def test_it_has_the_bits_of_the_loop_by_hand_and_nothing_crosses_between_syncs(
    crew: Crew, tmp_path: Path, example: Example, accumulate: int
) -> None:
    given = arguments(tmp_path, accumulate)
    crossed = crew.run(run_example, (example.program, given), SECONDS)[0]
    assert_ended_by_hand(example, tmp_path, accumulate)
    epoch = 30 // accumulate
    assert len(crossed) == EPOCHS * epoch
    for step, names in enumerate(crossed[1:], 2):
        before = step - 1
        if step % LOCAL_STEPS == 0:
            assert names, f"no sync in step {step}"
        elif not (example.saves(before, accumulate) or before % epoch == 0):
            synced = before % LOCAL_STEPS == 0
            assert names == (list(example.after_sync) if synced else []), f"in step {step}"


@pytest.mark.parametrize("accumulate", [1, 3])
def test_it_goes_on_to_the_same_bits_from_wherever_it_was_cut_off(
    crew: Crew, tmp_path: Path, example: Example, accumulate: int
) -> None:
    given = arguments(tmp_path, accumulate)
    for batch in (17, 4, 20):
        crew.run(run_example, (example.program, given, batch), SECONDS)
        assert not (tmp_path / "model.safetensors").exists()
    crew.run(run_example, (example.program, given), SECONDS)
    assert_ended_by_hand(example, tmp_path, accumulate)
