"""Training losses and seconds, summed until they are sent to the other workers."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from localsgd.reduce.compressor import widest


class Observations:
    """Losses and times of the workers hosted here since they were last sent.

    Args:
        workers: the number of workers hosted here.
        device: where losses are.
    """

    def __init__(self, workers: int, device: torch.device) -> None:
        self.seconds = 0.0
        self._sums = torch.zeros(workers, dtype=widest(device), device=device)
        self._counts = [0] * workers
        self._since = time.perf_counter()

    @property
    def silent(self) -> bool:
        """Whether there is no loss to send."""
        return not any(self._counts)

    def add(self, row: int, loss: Tensor | float) -> None:
        """Adds the loss of a hosted worker's batch, without waiting for a GPU."""
        self._sums[row] += loss.detach() if isinstance(loss, Tensor) else loss
        self._counts[row] += 1

    def restart(self) -> None:
        """Starts the clock now."""
        self._since = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Takes time off the clock that was no training."""
        self._since += seconds

    def signals(self, learning_rate: float, waited_seconds: float) -> Tensor:
        """The signals of each worker `[w, 5]`, in the order of `Signal`; new sums begin.

        Losses are not waited for here either.
        """
        now = time.perf_counter()
        self.seconds += now - self._since
        self._since = now
        rows = [[learning_rate, waited_seconds, self.seconds, 0.0, count] for count in self._counts]
        signals = torch.tensor(rows, dtype=self._sums.dtype).to(self._sums.device)
        signals[:, 3] = self._sums
        self._sums.zero_()
        self._counts = [0] * len(self._counts)
        return signals

    def state(self, row: int) -> tuple[Any, int]:
        """Sum and count of one worker's losses; `seconds` are saved separately."""
        return self._sums[row], self._counts[row]

    def load(self, row: int, state: tuple[Any, int]) -> None:
        self._sums[row], self._counts[row] = state
