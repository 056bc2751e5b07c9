"""What follows a collective, done beside the program, so that a wait starts nothing.

A sync in two stages, over a slow link and then inside a block, could start its second stage when it
is waited for. But one rank may wait alone, to save its state, and others would not be there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from localsgd.wire.collective import Pending


class Ahead:
    """Does jobs one after the other, in the order in which they are given."""

    def __init__(self) -> None:
        self._last: threading.Thread | None = None

    def start(self, job: Callable[[], Tensor]) -> Pending[Tensor]:
        """The result of `job`, on its way; what it raises is raised by the wait."""
        before = self._last
        results: list[Tensor] = []
        errors: list[BaseException] = []

        def run() -> None:
            if before is not None:
                before.join()
            try:
                with torch.no_grad():
                    results.append(job())
            except BaseException as error:
                errors.append(error)

        self._last = thread = threading.Thread(target=run, name="localsgd-ahead", daemon=True)
        thread.start()

        def finish() -> Tensor:
            thread.join()
            if errors:
                raise errors[0]
            return results[0]

        return Pending(finish)
