"""One laboratory of 2 racks x 2 nodes and one crew on it, for all tests that need processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.network import crew as crews
from benchmarks.network.crew import Crew
from benchmarks.network.laboratory import Laboratory, laboratory
from benchmarks.network.refusal import Refused
from benchmarks.network.torchrun import PORT

ROOT = Path(__file__).parents[3]


def refusal() -> str:
    """Why no laboratory can be built here; empty where one can."""
    try:
        with laboratory(1):
            return ""
    except Refused as error:
        return str(error)


@pytest.fixture(scope="session")
def possible() -> None:
    """Skips with the reason."""
    reason = refusal()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def racks(possible: None) -> Iterator[Laboratory]:
    """2 racks of 2 nodes, unshaped."""
    with laboratory(4, racks=2) as made:
        yield made


@contextmanager
def forked(
    made: Laboratory, program: Sequence[str], *_: object, **__: object
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """As `torchrun.started`, with one import of torch for all processes (see `zygote`)."""
    names = [made.namespace(node) for node in range(made.nodes)]
    command = [sys.executable, "-m", "tests.benchmarks.network.zygote", made.address(0), str(PORT)]
    process = subprocess.Popen([*command, program[-1], *names], cwd=ROOT)
    try:
        yield [process]
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def crew(racks: Laboratory) -> Iterator[Crew]:
    """A process on each of 4 nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crews.torchrun, "started", forked)
        with crews.crew(racks) as made:
            yield made


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
