"""accelerate: the example ends with the bits of the loop by hand, whatever happens on its way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.distributed.harness import Crew
from tests.integrations import by_hand
from tests.integrations.frameworks import run_example

pytest.importorskip("accelerate", reason="needs localsgd[accelerate]")

BATCH, EPOCHS = 24, 2


def order(worker: int, epoch: int) -> list[Tensor]:
    """Batches of the shuffled whole, dealt out in turns."""
    return list(by_hand.permutation(1440, seed=epoch).split(BATCH))[worker::2]


def expected(accumulate: int) -> tuple[dict[str, Tensor], float]:
    return by_hand.trained(
        order,
        epochs=EPOCHS,
        accumulate=accumulate,
        make=lambda model: torch.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.9, nesterov=True
        ),
        schedule=lambda inner: torch.optim.lr_scheduler.StepLR(inner, step_size=20, gamma=0.5),
    )


def arguments(out: Path, accumulate: int) -> list[str]:
    return ["--double", f"--epochs={EPOCHS}", f"--accumulate={accumulate}", f"--out={out}"]


def assert_ended_as(out: Path, weights: dict[str, Tensor]) -> None:
    from safetensors.torch import load_file

    found = load_file(out / "model.safetensors")
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_example_has_the_bits_of_the_loop_by_hand(
    crew: Crew, tmp_path: Path, accumulate: int
) -> None:
    given = arguments(tmp_path, accumulate)
    crossing = crew.run(run_example, ("with_accelerate", given), 100)
    assert_ended_as(tmp_path, expected(accumulate)[0])
    # Saved after every 15 micro-batches, evaluated after every epoch of 30.
    saved = {micro // accumulate + 1 for micro in (15, 30, 45)}
    steps = EPOCHS * 30 // accumulate
    assert crossing[0] == sorted({1, *range(4, steps + 1, 4), *saved})


@pytest.mark.parametrize("accumulate", [1, 3])
def test_it_goes_on_to_the_same_bits_from_wherever_it_was_cut_off(
    crew: Crew, tmp_path: Path, accumulate: int
) -> None:
    given = arguments(tmp_path, accumulate)
    for batch in (17, 4, 20):  # 17, 19 and 35 of the run
        crew.run(run_example, ("with_accelerate", given, batch), 100)
        assert not (tmp_path / "model.safetensors").exists()
    crew.run(run_example, ("with_accelerate", given), 100)
    assert_ended_as(tmp_path, expected(accumulate)[0])
