"""What `fault_tolerance` costs, metered: nothing without it, a row and small calls with it."""

from __future__ import annotations

import gc
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from localsgd import LocalSGD
from tests.distributed.harness import run
from tests.optimizer.hall import Hall, Member
from tests.optimizer.test_ddp import calls_of

LENGTH = 40_000
"""Scalars of the model: rows are much larger than anything else in memory."""


class Vector(nn.Module):
    def __init__(self, buffers: bool = False) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(LENGTH, dtype=torch.float64))
        if buffers:
            self.register_buffer("mean", torch.ones(3, dtype=torch.float64))


def rows_held() -> float:
    """Memory of all tensors of this process, in rows."""
    gc.collect()
    tensors = [x for x in gc.get_objects() if issubclass(type(x), Tensor)]
    storages = [x.untyped_storage() for x in tensors if x.layout == torch.strided]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values()) / (8 * LENGTH)


def steps(optimizer: LocalSGD, model: Any, count: int) -> None:
    worker = dist.get_rank() if dist.is_initialized() else 0
    for _ in range(count):
        optimizer.zero_grad()
        (model.w + worker).square().sum().backward()
        optimizer.step()
    optimizer.zero_grad()


def made(**options: Any) -> tuple[LocalSGD, Any]:
    model = Vector(options.pop("buffers", False))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    return LocalSGD(inner, model, local_steps=4, **options), model


def without(options: dict[str, Any]) -> tuple[dict[str, int], int, float]:
    before = rows_held()
    optimizer, model = made(**options)
    steps(optimizer, model, 4)
    counted = optimizer.ledger.levels[0].calls
    calls = calls_of(lambda: steps(optimizer, model, 8))
    return calls, optimizer.ledger.levels[0].calls - counted, rows_held() - before


def test_without_it_there_is_a_sum_for_each_sync_and_the_row_alone() -> None:
    for calls, counted, rows in run(2, without, {}):
        assert calls == {"c10d::allreduce_": 2}
        assert counted == 2
        assert round(rows) == 1


def test_without_it_error_feedback_takes_anchor_and_memory() -> None:
    for calls, counted, rows in run(2, without, {"reducer": "ef-sign"}):
        assert set(calls) == {"c10d::_allgather_base_"}
        assert counted == 2
        assert round(rows) == 3


def with_it(**options: Any) -> tuple[dict[str, int], int]:
    """Calls of one sync, and rows for each of two workers."""
    found: list[dict[str, int]] = []
    all_here, looked = threading.Barrier(3), threading.Barrier(3)

    def work(engine: Member) -> None:
        optimizer, model = made(fault_tolerance=engine, **options)
        steps(optimizer, model, 4)
        engine.calls.clear()
        steps(optimizer, model, 4)
        found.append(dict(engine.calls))
        all_here.wait(60)
        looked.wait(60)

    before = rows_held()
    hall = Hall()
    hall.start(work, "w0", "w1")
    all_here.wait(60)
    rows = (rows_held() - before) / 2
    looked.wait(60)
    hall.end()
    assert found[0] == found[1]
    return found[0], round(rows)


def test_with_it_a_sync_takes_two_calls_more_and_a_copy_of_the_row() -> None:
    """A gather of where each is, the sum, and a sum that says that all is whole."""
    calls, rows = with_it()
    assert calls == {"gather": 1, "sum": 2}
    assert rows == 2


def test_with_it_error_feedback_takes_a_copy_more() -> None:
    calls, rows = with_it(reducer="ef-sign")
    assert calls == {"gather": 1, "swap": 1, "sum": 1}
    assert rows == 4


def test_with_it_buffers_take_three_calls_more() -> None:
    calls, _ = with_it(buffers=True)
    assert calls == {"gather": 1, "sum": 2, "swap": 3}
