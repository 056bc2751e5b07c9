"""The rows that each worker draws: independently, uniformly, with replacement, from all data.

Worker k of a run with a seed has a stream of its own, from (seed, k); its first B numbers are the
batch of its first local step, and so on. H, the step size and how many other workers there are
change nothing in it, so that runs of a seed are compared on common chance.

K: workers · B: rows of a worker's batch · d: features
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array

from experiments.convex.products import Batch
from experiments.logistic.rows import Integers

# Numbers drawn ahead, and rows gathered ahead: enough to hide the price of a call, few enough to
# stay in cache.
_DRAWN = 1 << 17
_GATHERED = 1 << 14
# Keeps these streams apart from others that come from the same seed.
_PURPOSE = 0x51


def stream(seed: int, worker: int) -> np.random.Generator:
    """The stream of row numbers of one worker."""
    return np.random.default_rng([seed, worker, _PURPOSE])


class Batches:
    """The batches of K workers, one local step after the other, each as one sparse matrix.

    Args:
        rows: [n, d], what is drawn from.
        workers: K.
        batch: B.
        seed: of the run.
    """

    def __init__(self, rows: csr_array, workers: int, batch: int, seed: int) -> None:
        self._rows = rows
        self._workers = workers
        self._batch = batch
        self._streams = [stream(seed, worker) for worker in range(workers)]
        features = rows.shape[1]
        self._offsets = np.arange(0, workers * features, features, dtype=rows.indices.dtype)
        self._joined = self._endless()

    def joined(self) -> Batch:
        """The next step's batch of all workers, [K B, d]: for workers that hold one model."""
        return next(self._joined)

    def apart(self) -> Batch:
        """The same on the diagonal of blocks, [K B, K d]: worker k's rows meet worker k's model."""
        starts, columns, values, features = self.joined()
        per_worker = np.diff(starts[:: self._batch])
        moved = columns + np.repeat(self._offsets, per_worker)
        return Batch(starts, moved, values, self._workers * features)

    def _endless(self) -> Iterator[Batch]:
        size = self._workers * self._batch
        for chosen in self._gathers():
            gathered = self._rows[chosen]
            for first in range(0, len(chosen), size):
                starts = gathered.indptr[first : first + size + 1]
                here = slice(starts[0], starts[-1])
                columns, values = gathered.indices[here], gathered.data[here]
                yield Batch(starts - starts[0], columns, values, gathered.shape[1])

    def _gathers(self) -> Iterator[Integers]:
        """Row numbers of a few steps at a time, step after step, worker after worker."""
        size = self._workers * self._batch
        ahead, together = max(1, _DRAWN // size), max(1, _GATHERED // size)
        examples = self._rows.shape[0]
        while True:
            draws = [own.integers(examples, size=(ahead, self._batch)) for own in self._streams]
            steps = np.stack(draws, axis=1)
            for first in range(0, ahead, together):
                yield steps[first : first + together].ravel()
