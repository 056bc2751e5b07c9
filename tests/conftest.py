"""Every test starts from the same seed, on one thread. Time limits are set in pyproject.toml."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch

from tests.distributed import harness


def pytest_configure() -> None:
    """Ctrl-C reaches what tests start, also where `make test` runs in the background of a shell,
    which has it ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named by their argument: packed ones hold a time, so that processes which share the
    tests would give them different names.
    """
    return argname if isinstance(val, bytes) else None


@pytest.fixture(autouse=True)
def same_start() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def no_process_left() -> Iterator[None]:
    yield
    harness.close()


@pytest.fixture
def own_names() -> Iterator[None]:
    """Names that are given inside are forgotten afterwards."""
    from localsgd.train.plugins import KINDS

    before = {kind: dict(others._added) for kind, others in KINDS.items()}
    yield
    for kind, others in KINDS.items():
        others._added.clear()
        others._added.update(before[kind])
