"""Training losses and seconds, summed until they are told to the other workers."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from localsgd.reduce.compressor import widest


class Observations:
    """What the workers hosted here have to tell since the last time.

    Args:
        workers: how many are hosted here.
        device: where losses are.
    """

    def __init__(self, workers: int, device: torch.device) -> None:
        self.seconds = 0.0
        self._sums = torch.zeros(workers, dtype=widest(device), device=device)
        self._counts = [0] * workers
        self._since = time.perf_counter()

    @property
    def silent(self) -> bool:
        """Whether there is no loss to tell."""
        return not any(self._counts)

    def add(self, row: int, loss: Tensor | float) -> None:
        """The loss of a hosted worker's batch; not read, so that no GPU is waited for."""
        self._sums[row] += loss.detach() if isinstance(loss, Tensor) else loss
        self._counts[row] += 1

    def restart(self) -> None:
        """The clock runs from here."""
        self._since = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Takes off the clock what was no training."""
        self._since += seconds

    def signals(self, learning_rate: float, waited_seconds: float) -> Tensor:
        """Of each worker `[w, 5]`, in the order of `Signal`; begins new sums.

        Losses are not read here either.
        """
        now = time.perf_counter()
        self.seconds += now - self._since
        self._since = now
        rows = [[learning_rate, waited_seconds, self.seconds, 0.0, count] for count in self._counts]
        told = torch.tensor(rows, dtype=self._sums.dtype).to(self._sums.device)
        told[:, 3] = self._sums
        self._sums.zero_()
        self._counts = [0] * len(self._counts)
        return told

    def state(self, row: int) -> tuple[Any, int]:
        """Of one worker; `seconds` are kept apart."""
        return self._sums[row], self._counts[row]

    def load(self, row: int, state: tuple[Any, int]) -> None:
        self._sums[row], self._counts[row] = state
