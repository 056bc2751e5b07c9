"""A rank that leaves or stays silent, as the others read it."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from localsgd import LocalSGD, PeerLost
from localsgd.optimizer.peer_errors import others_named_lost
from tests.distributed.harness import run
from tests.optimizer.reference import loss_of, nesterov, net

pytestmark = pytest.mark.timeout(120)


def left_alone(call: str, local_steps: int, silent: bool) -> str | None:
    """The second of two ranks takes 3 steps; then it ends, or does nothing until it is told."""
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=local_steps, timeout=2)
    _round(model, optimizer, 3)
    # A store of its own: the groups are what the ranks lose.
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["read"]) if silent else dist.destroy_process_group()
        return None
    calls = {
        "step": lambda: _round(model, optimizer, local_steps),
        "finish": optimizer.finish,
        "averaged_model": optimizer.averaged_model().__enter__,
    }
    with pytest.raises(PeerLost) as caught:
        calls[call]()
    store.set("read", "")
    assert isinstance(caught.value.__cause__, RuntimeError)
    return str(caught.value)


def _round(model: Any, optimizer: LocalSGD, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), optimizer.steps).backward()
        optimizer.step()


@pytest.mark.parametrize("call", ["step", "finish", "averaged_model"])
@pytest.mark.parametrize("local_steps", [1, 2])
def test_a_rank_that_ends_early(call: str, local_steps: int) -> None:
    said, _ = run(2, left_alone, call, local_steps, False)
    assert said.startswith("rank 1 ended; last seen: rank 1 in ")
    assert "rank 0 is in " in said
    assert "call finish() on all" in said


def test_a_rank_that_stays_silent() -> None:
    said, _ = run(2, left_alone, "step", 2, True)
    assert said.startswith("rank 1 did not answer within `timeout`; last seen: rank 1 in ")


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ConnectionResetError("reset")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, others_named_lost(1):
        raise error
    assert caught.value is error
