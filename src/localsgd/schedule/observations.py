"""Training losses, numbers of the user's own and seconds, summed until they are sent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from localsgd.reduce.compressor import widest


class Observations:
    """Losses and times of the workers hosted here since they were last sent.

    Args:
        workers: the number of workers hosted here.
        device: where losses are.
        reported: names of further numbers that are summed as losses are.
    """

    def __init__(self, workers: int, device: torch.device, reported: Sequence[str] = ()) -> None:
        self.seconds = 0.0
        self.names = ("loss", *reported)
        self._sums = torch.zeros(workers, len(self.names), dtype=widest(device), device=device)
        self._counts = [[0] * len(self.names) for _ in range(workers)]
        self._since = time.perf_counter()

    @property
    def silent(self) -> set[str]:
        """The names of which there is no number to send."""
        return {
            name
            for name, counts in zip(self.names, zip(*self._counts, strict=True), strict=True)
            if not any(counts)
        }

    def add(self, row: int, number: Tensor | float, name: str = "loss") -> None:
        """Adds a number of a hosted worker, such as the loss of its batch.

        A GPU is not waited for.
        """
        column = self.names.index(name)
        self._sums[row, column] += (
            number.detach().reshape(()) if isinstance(number, Tensor) else number
        )
        self._counts[row][column] += 1

    def restart(self) -> None:
        """Starts the clock now."""
        self._since = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Takes time off the clock that was no training."""
        self._since += seconds

    def signals(self, learning_rate: float, waited_seconds: float) -> Tensor:
        """The signals of each worker `[w, 3 + 2 names]`, in the order of `Signal`; new sums begin.

        Losses are not waited for here either.
        """
        now = time.perf_counter()
        self.seconds += now - self._since
        self._since = now
        rows = [
            [learning_rate, waited_seconds, self.seconds, *(n for c in counts for n in (0.0, c))]
            for counts in self._counts
        ]
        signals = torch.tensor(rows, dtype=self._sums.dtype).to(self._sums.device)
        signals[:, 3::2] = self._sums
        self._sums.zero_()
        self._counts = [[0] * len(self.names) for _ in self._counts]
        return signals

    def state(self, row: int) -> tuple[Any, ...]:
        """Sum and count by name, one after the other; `seconds` are saved separately."""
        pairs = zip(self._sums[row], self._counts[row], strict=True)
        return tuple(number for pair in pairs for number in pair)

    def load(self, row: int, state: Sequence[Any]) -> None:
        for column, total in enumerate(state[::2]):
            self._sums[row, column] = total
        self._counts[row] = [int(count) for count in state[1::2]]
