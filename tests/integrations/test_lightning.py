"""What Lightning does with a model while the average is shown."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.harness import Crew
from tests.integrations.frameworks import SECONDS, Killed, killed_at, launched
from tests.integrations.frameworks import example as program
from tests.integrations.test_examples import LIGHTNING, arguments, assert_ended_by_hand

pytest.importorskip("lightning", reason="needs localsgd[lightning]")


def saved_at_validation(given: dict[str, Any]) -> None:
    """Cut off in the second epoch, and taken up from the checkpoint of the first validation."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    def best(folder: Path, **_: Any) -> ModelCheckpoint:
        return ModelCheckpoint(folder, monitor="accuracy", mode="max", save_top_k=-1)

    for cut in (True, False):
        module = program(LIGHTNING.program)
        module.ModelCheckpoint = best
        with launched(), killed_at(35 if cut else 0), suppress(Killed):
            module.main(**given)


def test_a_checkpoint_at_validation_has_each_workers_own_model(crew: Crew, tmp_path: Path) -> None:
    crew.run(saved_at_validation, (arguments(tmp_path, accumulate=1),), SECONDS)
    saved = sorted(path.stem for path in tmp_path.glob("epoch=*.ckpt"))
    assert saved == ["epoch=0-step=30", "epoch=1-step=60"]  # In the middle of a round of 4.
    assert_ended_by_hand(LIGHTNING, tmp_path, accumulate=1)
