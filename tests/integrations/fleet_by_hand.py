"""What the workers of a fleet must have after every sync, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.integrations.fleet import RATE, Seen, Worker, wanted


def one_result(workers: Sequence[Worker]) -> dict[int, Seen]:
    """What was seen of each sync that counted, by its number: the same by all."""
    found: dict[int, Seen] = {}
    for one in (s for w in workers for s in w.seen):
        same = found.setdefault(one.sync, one)
        assert (one.digest, one.names, one.given) == (same.digest, same.names, same.given)
    return found


def ends_of(before: Seen, averaged: Sequence[str], local_steps: int) -> torch.Tensor:
    """Where the local steps of a round end for those who were averaged, by hand: `[K, n]`."""
    ends = []
    for name in averaged:
        w, rank = before.model.clone(), before.names.index(name)
        for t in range(local_steps):
            batch = before.given + t * len(before.names) + rank
            w -= RATE * (w - wanted(batch, len(w)))
        ends.append(w)
    return torch.stack(ends)


def check_by_hand(workers: Sequence[Worker], local_steps: int = 4) -> dict[int, Seen]:
    """Every sync that counted has one result, which is the plain mean of the local steps of those
    who were averaged, each on its own batches.
    """
    found = one_result(workers)
    for sync in range(2, max(found) + 1):
        before, after = found[sync - 1], found[sync]
        assert set(after.averaged) <= set(before.names)
        expected = ends_of(before, after.averaged, local_steps).mean(0)
        assert torch.allclose(after.model, expected, rtol=0, atol=1e-12), f"sync {sync}"
        assert after.given == before.given + local_steps * len(before.names)
    return found


def check_conserved(workers: Sequence[Worker], local_steps: int = 4) -> dict[int, Seen]:
    """What is sent and what is kept add up, whoever comes and goes: with K' averaged now and K the
    last time, K' (anchor before - after) + sum m' = sum (update + K' / K m).
    """
    found = one_result(workers)
    kept = {(s.sync, w.name): s.memory for w in workers for s in w.seen}
    for sync in range(2, max(found) + 1):
        before, after = found[sync - 1], found[sync]
        now = len(after.averaged)
        ratio = now / max(1, len(before.averaged))
        moved = now * (before.model - after.model)
        had = (before.model - ends_of(before, after.averaged, local_steps)).sum(0)
        for name in after.averaged:
            if (memory := kept[sync - 1, name]) is not None and before.averaged:
                had = had + ratio * memory
        stay = [name for name in after.averaged if name in after.names]
        if any((sync, name) not in kept for name in stay):
            continue  # Killed before it could tell.
        moved = moved + sum(kept[sync, name] for name in stay)
        assert torch.allclose(moved, had, rtol=0, atol=1e-12), f"sync {sync}"
    return found
