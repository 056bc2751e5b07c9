"""The harness itself: results by rank, failures as the child's traceback, limits that end."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed.harness import ChildFailed, run


def summed(start: float) -> torch.Tensor:
    x = torch.tensor([start + dist.get_rank()])
    dist.all_reduce(x)
    return torch.cat([x, torch.tensor([float(dist.get_rank())])])


def fails_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ZeroDivisionError("on purpose")
    dist.barrier()


def hangs_on(rank: int) -> None:
    if dist.get_rank() == rank:
        time.sleep(60)


def dies_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os._exit(3)
    dist.barrier()


def process_id() -> int:
    return os.getpid()


def test_results_come_by_rank() -> None:
    first, second = run(2, summed, 10.0)
    assert first.tolist() == [21.0, 0.0]
    assert second.tolist() == [21.0, 1.0]


def test_processes_stay_for_the_next_call() -> None:
    assert run(2, process_id) == run(2, process_id)


def test_a_failure_is_the_childs_traceback_and_the_next_call_works() -> None:
    with pytest.raises(ChildFailed, match=r"(?s)rank 1 of 2.*in fails_on.*ZeroDivisionError: on p"):
        run(2, fails_on, 1)
    assert len(run(2, process_id)) == 2


def test_who_hangs_is_named() -> None:
    with pytest.raises(ChildFailed, match=r"ranks \[1\] of 2 did not answer within 1"):
        run(2, hangs_on, 1, seconds=1)


def test_who_dies_is_noticed_at_once() -> None:
    with pytest.raises(ChildFailed, match="rank 0 of 2\nthe process died"):
        run(2, dies_on, 0)


def test_warnings_are_errors_there_too() -> None:
    with pytest.raises(ChildFailed, match="UserWarning: on purpose"):
        run(2, warns)


def warns() -> None:
    import warnings

    warnings.warn("on purpose", stacklevel=1)
