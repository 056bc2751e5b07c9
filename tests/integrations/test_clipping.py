"""While H is 1, what is clipped is the averaged gradient, as in mini-batch SGD."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.distributed.harness import Crew
from tests.integrations import by_hand
from tests.integrations.frameworks import SECONDS, launched
from tests.integrations.frameworks import example as program
from tests.integrations.test_examples import LIGHTNING, TRAINER, arguments, assert_weights
from tests.integrations.test_scaler import scaled

CLIP = 0.05


def clipped_trainer(given: dict[str, Any]) -> None:
    from localsgd.integrations.transformers import LocalSGDTrainer

    made = LocalSGDTrainer.__init__

    def clips(trainer: Any, model: Any, settings: Any, **others: Any) -> None:
        settings.max_grad_norm = CLIP
        made(trainer, model, settings, **{**others, "local_sgd": {"local_steps": 1}})

    with launched(), mock.patch.object(LocalSGDTrainer, "__init__", clips):
        program(TRAINER.program).main(**given)


def clipped_lightning(given: dict[str, Any]) -> None:
    from lightning.pytorch import Trainer

    from localsgd.integrations.lightning import LocalSGDStrategy

    with launched(), scaled("lightning"):
        made = Trainer.__init__

        def clips(trainer: Any, **others: Any) -> None:
            strategy = LocalSGDStrategy(local_steps=1)
            made(trainer, **{**others, "strategy": strategy, "gradient_clip_val": CLIP})

        with mock.patch.object(Trainer, "__init__", clips):
            program(LIGHTNING.program).main(**given)


@pytest.mark.parametrize(
    ("example", "run"), [(TRAINER, clipped_trainer), (LIGHTNING, clipped_lightning)]
)
def test_averaged_gradients_are_clipped(crew: Crew, tmp_path: Path, example: Any, run: Any) -> None:
    pytest.importorskip(example.framework, reason=f"needs localsgd[{example.framework}]")
    given = arguments(tmp_path, accumulate=3) | {"epochs": 1}
    crew.run(run, (given,), SECONDS)
    weights, _ = by_hand.trained(
        example.order,
        epochs=1,
        accumulate=3,
        make=example.make,
        schedule=partial(example.schedule, steps=10),
        clip=CLIP,
    )
    assert_weights(example, tmp_path, weights)
