"""A small problem for the convex study, and processes that start quickly."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from experiments import engine
from experiments.convex.job import made
from experiments.logistic import Logistic
from tests.distributed import harness


@pytest.fixture(scope="session")
def problem() -> Logistic:
    return made()


@pytest.fixture
def quick_pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The engine's processes are forked from one that has imported torch; usually each imports it.

    They do not look after their parent, which here is the process that forks them.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([*harness.PRELOADED, "experiments.engine"])

    def pool(processes: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(processes, context, engine._deaf)

    monkeypatch.setattr(engine, "_pool", pool)
    with harness.path_for_children():
        yield
