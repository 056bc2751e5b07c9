"""What to install for an integration."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Generator[None]:
    """A context that imports a framework, and says what to install where it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"localsgd.integrations.{name} needs {error.name}, which is not installed; "
            f"pip install 'localsgd[{name}]'"
        ) from error
