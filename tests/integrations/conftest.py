"""Two processes of their own for frameworks, which keep state and change warnings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.harness import Crew


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    processes = Crew(2)
    yield processes
    processes.close()
