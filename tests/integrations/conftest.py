"""Two processes of their own for frameworks, which keep state and change warnings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.harness import Crew
from tests.integrations.frameworks import SECONDS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "integrations" in item.path.parts and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(3 * SECONDS))


class Held:
    """A crew that is started when it is needed, and anew after a failure."""

    crew: Crew | None = None


@pytest.fixture(scope="session")
def held() -> Iterator[Held]:
    held = Held()
    yield held
    if held.crew is not None:
        held.crew.close()


@pytest.fixture
def crew(held: Held) -> Crew:
    if held.crew is None or held.crew.connections[0].closed:
        held.crew = Crew(2)
    return held.crew
