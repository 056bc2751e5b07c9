"""`optimizer.metrics()`: counts by hand, no collective, no wait for a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import localsgd
from localsgd import LocalSGD
from tests.distributed.harness import run
from tests.optimizer.reference import loss_of, nesterov, net


def steps(optimizer: LocalSGD, model: Any, count: int) -> None:
    for step in range(count):
        optimizer.zero_grad()
        loss_of(model, dist.get_rank() if dist.is_initialized() else 0, step).backward()
        optimizer.step()


def four_ranks() -> tuple[list[dict[str, float]], Any]:
    """`..1..2..1..2.` and finish: rank 0 alone asks after each part."""
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=[2, 2], topology="2x2")
    found = []
    asks = dist.get_rank() == 0
    for count in (0, 3, 6):
        steps(optimizer, model, count)
        found += [optimizer.metrics()] if asks else []
    saved = optimizer.state_dict()
    optimizer.finish()
    found += [optimizer.metrics()] if asks else []
    ledger = optimizer.ledger.state()
    optimizer.load_state_dict(saved)
    found += [optimizer.metrics()] if asks else []
    return found, ledger


def test_counts_on_two_levels() -> None:
    (found, ledger), *_ = run(4, four_ranks)
    start, third, ninth, finished, loaded = found
    counts = [
        [row[name] for name in ("steps", "syncs_level_1", "syncs_level_2")]
        for row in (start, third, ninth, finished)
    ]
    assert counts == [[0, 0, 0], [3, 1, 0], [9, 4, 2], [9, 5, 3]]
    assert loaded == ninth
    assert (start["local_steps_level_1"], start["local_steps_level_2"]) == (2, 2)
    assert start["learning_rate"] == 0.1
    for level, entry in enumerate(ledger, start=1):
        assert finished[f"sent_bytes_level_{level}"] == entry["bytes"] > 0
        assert finished[f"waited_seconds_level_{level}"] == entry["seconds"]
        assert finished[f"collectives_level_{level}"] == entry["calls"]
    assert finished["sent_bytes"] == sum(entry["bytes"] for entry in ledger)
    assert all(type(value) in (int, float) for row in found for value in row.values())


def test_syncs_on_gradients_count_too() -> None:
    model = net()
    switched = localsgd.post_local(3, after=4)
    optimizer = LocalSGD(nesterov(model), model, local_steps=switched)
    steps(optimizer, model, 4)
    assert optimizer.metrics()["syncs_level_1"] == 4
    steps(optimizer, model, 7)
    found = optimizer.metrics()
    assert (found["syncs_level_1"], found["local_steps_level_1"]) == (6, 3)


@pytest.mark.filterwarnings("ignore:.*lr.*:UserWarning")
def test_a_rate_on_a_device_is_not_waited_for() -> None:
    model = net()
    inner = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[3].parameters(), "lr": 0.5}], lr=0.25
    )
    optimizer = LocalSGD(inner, model, local_steps=2)
    assert optimizer.metrics()["learning_rate"] == 0.25
    assert optimizer.metrics()["learning_rate_group_2"] == 0.5
    inner.param_groups[0]["lr"] = torch.tensor(0.25, device="meta")  # any look at it raises
    assert "learning_rate" not in optimizer.metrics()
    inner.param_groups[0]["lr"] = torch.tensor(0.125)
    assert optimizer.metrics()["learning_rate"] == 0.125
