"""Prepares the next batch in a thread while this one trains.

It helps if preparing takes time while processors are free: images are read from files, or the model
trains on a GPU. Batches depend on (worker, step) alone, so they are the same with and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

Batch = tuple[Tensor, Tensor]


class Prefetched:
    """`batch`, with the call that is likely to come next started early.

    One thread makes all batches, so `batch` need not be thread-safe. It keeps one batch beyond the
    current one, and ends with this object. An error of `batch` is raised when the batch is asked
    for.

    Args:
        batch: of (worker, steps that it took before).
        ids: the workers hosted here, in the order in which they are asked.
    """

    def __init__(self, batch: Callable[[int, int], Batch], ids: Sequence[int]) -> None:
        self._batch = batch
        self._following = dict(zip(ids, [*ids[1:], ids[0]], strict=True))
        self._steps: dict[int, int] = {}
        self._pool = ThreadPoolExecutor(1, "next-batch")
        self._coming: tuple[tuple[int, int], Future[Batch]] | None = None

    def __call__(self, worker: int, step: int) -> Batch:
        found = self._begun(worker, step).result()
        self._steps[worker] = step + 1
        following = self._following[worker]
        coming = following, self._steps.get(following, step)
        self._coming = coming, self._pool.submit(self._batch, *coming)
        return found

    def _begun(self, worker: int, step: int) -> Future[Batch]:
        coming, self._coming = self._coming, None
        if coming is not None:
            if coming[0] == (worker, step):
                return coming[1]
            coming[1].cancel()  # a worker that paused, or a run that was wound back
        return self._pool.submit(self._batch, worker, step)
