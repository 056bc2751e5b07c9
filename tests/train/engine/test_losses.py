"""A run whose workers pass through the model at once is the same run, to rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from localsgd.averaging.placement import placement_of
from localsgd.errors import UserError
from localsgd.train.config.plan import Plan
from localsgd.train.engine.assembly import Assembly, assemble
from tests.runs import digits, tiny


def assembled(**settings: Any) -> Assembly:
    run = tiny(precision="float64", model="small-cnn-4", **settings)
    task = digits(run.train_samples or 0)
    return assemble(
        run, task, placement_of(Plan(run, task.train_size).topology), torch.device("cpu")
    )


@pytest.mark.parametrize("settings", [{"method": "post-local"}, {"method": "batch-growth"}])
def test_batched_runs_are_the_same_to_rounding(settings: dict[str, Any]) -> None:
    one_by_one, at_once = assembled(**settings), assembled(**settings, batched=True)
    for assembly in (one_by_one, at_once):
        assembly.advance()
    torch.testing.assert_close(
        at_once.workers.params, one_by_one.workers.params, rtol=1e-12, atol=1e-12
    )


def test_batched_and_compiled_is_refused() -> None:
    with pytest.raises(UserError, match="batched and compile"):
        assembled(batched=True, compile=True)
