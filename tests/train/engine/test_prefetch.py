from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from localsgd.train.config.complete import complete_run
from localsgd.train.config.run import Run
from localsgd.train.data.tasks import imagenet
from localsgd.train.data.tasks.digits import CARD
from localsgd.train.engine.prefetch import Prefetched
from tests.runs import prepared, same, tiny, worker_states

PATIENCE = 20.0


class Batches:
    """Makes batches that say whose they are, and remembers which, and in which thread."""

    def __init__(self, refused: tuple[int, int] | None = None) -> None:
        self.made: list[tuple[int, int]] = []
        self.threads: set[str] = set()
        self._refused = refused

    def __call__(self, worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.threads.add(threading.current_thread().name)
        self.made.append((worker, step))
        if (worker, step) == self._refused:
            raise ValueError("damaged")
        return torch.tensor([worker]), torch.tensor([step])


def settled(batches: Batches, count: int) -> list[tuple[int, int]]:
    """The batches made, once there are so many."""
    end = time.monotonic() + PATIENCE
    while len(batches.made) < count and time.monotonic() < end:
        time.sleep(0.001)
    return batches.made


def numbers(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[int, int]:
    return int(batch[0]), int(batch[1])


def test_the_next_batch_is_made_before_it_is_asked_for() -> None:
    batches = Batches()
    ahead = Prefetched(batches, [4, 5, 6])
    assert numbers(ahead(4, 7)) == (4, 7)
    assert settled(batches, 2) == [(4, 7), (5, 7)]
    assert numbers(ahead(5, 7)) == (5, 7)
    assert numbers(ahead(6, 7)) == (6, 7)
    assert settled(batches, 4) == [(4, 7), (5, 7), (6, 7), (4, 8)]
    assert batches.threads == {"next-batch_0"}


def test_a_worker_that_pauses_goes_on_with_its_own_next_batch() -> None:
    batches = Batches()
    ahead = Prefetched(batches, [0, 1])
    asked = [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3), (0, 0), (1, 5)]
    assert [numbers(ahead(*place)) for place in asked] == asked


def test_what_is_wrong_comes_out_where_the_batch_is_asked_for() -> None:
    batches = Batches(refused=(0, 2))
    ahead = Prefetched(batches, [0])
    assert numbers(ahead(0, 0)) == (0, 0)
    assert numbers(ahead(0, 1)) == (0, 1)
    settled(batches, 3)
    with pytest.raises(ValueError, match="damaged"):
        ahead(0, 2)
    assert numbers(ahead(0, 3)) == (0, 3)


def test_its_thread_ends_with_it() -> None:
    ahead = Prefetched(Batches(), [0])
    ahead(0, 0)
    mine = [t for t in threading.enumerate() if t.name.startswith("next-batch")]
    assert mine
    del ahead
    gc.collect()
    for thread in mine:
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "hierarchical", "topology": "2x2", "local_steps": (2, 2)},
        {"method": "local", "slowdown": (1.0, 2.0, 3.0, 1.0)},
        {"method": "batch-growth"},
        {"method": "local", "batched": True},
    ],
    ids=["levels", "speeds", "growth", "batched"],
)
def test_a_run_has_the_same_bits(tmp_path: Path, settings: dict[str, Any]) -> None:
    states = []
    for prefetch in (False, True):
        run = tiny(prefetch=prefetch, **settings)
        execution = prepared(run, tmp_path / str(prefetch))
        execution.train()
        states.append(worker_states(execution.assembly))
    assert same(*states)


def test_images_in_files_are_prefetched_unless_told_otherwise() -> None:
    assert complete_run(Run(), CARD).prefetch is False
    assert complete_run(Run(task="imagenet"), imagenet.CARD).prefetch is True
    assert complete_run(Run(task="imagenet", prefetch=False), imagenet.CARD).prefetch is False
