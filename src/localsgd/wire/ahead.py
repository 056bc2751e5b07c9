"""Runs the second stage of a sync in the background, so that waiting for it starts nothing.

A sync in two stages, over a slow link and then inside a block, could start its second stage in the
wait. But one rank may wait alone, to save its state, and the others would not take part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from localsgd.wire.collective import Pending


class Ahead:
    """Runs jobs one after the other in a thread, in the order in which they are given."""

    def __init__(self) -> None:
        self._last: threading.Thread | None = None

    def start(self, job: Callable[[], Tensor]) -> Pending[Tensor]:
        """Starts `job`; waiting returns its result, or raises its error."""
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
