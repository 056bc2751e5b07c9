"""The three all-reduces, played message by message, beside their formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from localsgd.cost import ALGORITHMS, Effort, Link, recursive_halving, ring, tree
from localsgd.errors import UserError

SCALARS = 5040
"""Divisible by all K and powers of two below."""
BYTES = 8


class Play:
    """Workers with an array each, and what their exchanges have cost along the critical path."""

    def __init__(self, workers: int) -> None:
        self.arrays = np.random.default_rng(0).integers(100, size=(workers, SCALARS))
        self.total = self.arrays.sum(axis=0)
        self.messages, self.bytes, self.added = 0, 0, 0

    def exchange(self, messages: list[tuple[int, int, slice]], add: bool) -> None:
        """Messages (from, to, part) at the same time; all of them have left before one arrives."""
        senders, receivers = [m[0] for m in messages], [m[1] for m in messages]
        assert len(set(senders)) == len(senders), "a worker sends one message at a time"
        assert len(set(receivers)) == len(receivers)
        sent = [self.arrays[sender, part].copy() for sender, _, part in messages]
        for (_, receiver, part), array in zip(messages, sent, strict=True):
            self.arrays[receiver, part] = array + (self.arrays[receiver, part] if add else 0)
        longest = max(len(array) for array in sent) * BYTES
        self.messages += 1
        self.bytes += longest
        self.added += longest if add else 0

    @property
    def effort(self) -> Effort:
        assert all(np.array_equal(array, self.total) for array in self.arrays)
        return Effort(self.messages, self.bytes, self.added)


def played_ring(workers: int) -> Effort:
    play, chunk = Play(workers), SCALARS // workers
    for add in (True, False):
        for turn in range(workers - 1):
            messages = []
            for worker in range(workers):
                part = (worker - turn + (0 if add else 1)) % workers
                here = slice(part * chunk, (part + 1) * chunk)
                messages.append((worker, (worker + 1) % workers, here))
            play.exchange(messages, add)
    return play.effort


def played_tree(workers: int) -> Effort:
    play, everything = Play(workers), slice(0, SCALARS)
    distances = [2**i for i in range(workers.bit_length()) if 2**i < workers]
    for distance in distances:
        nodes = range(distance, workers, 2 * distance)
        play.exchange([(node, node - distance, everything) for node in nodes], add=True)
    for distance in reversed(distances):
        nodes = range(distance, workers, 2 * distance)
        play.exchange([(node - distance, node, everything) for node in nodes], add=False)
    return play.effort


def played_halving(workers: int) -> Effort:
    play, everything = Play(workers), slice(0, SCALARS)
    core = 1 << (workers.bit_length() - 1)
    extra = [(core + i, i, everything) for i in range(workers - core)]
    if extra:
        play.exchange(extra, add=True)
    held = [(0, SCALARS)] * core
    distances = [core >> i for i in range(1, core.bit_length())]
    for distance in distances:
        halves = [_halves(held[w], upper=bool(w & distance)) for w in range(core)]
        play.exchange([(w, w ^ distance, slice(*halves[w][1])) for w in range(core)], add=True)
        held = [kept for kept, _ in halves]
    for distance in reversed(distances):
        play.exchange([(w, w ^ distance, slice(*held[w])) for w in range(core)], add=False)
        held = [_joined(held[w], held[w ^ distance]) for w in range(core)]
    if extra:
        play.exchange([(to, sender, part) for sender, to, part in extra], add=False)
    return play.effort


Range = tuple[int, int]


def _halves(whole: Range, upper: bool) -> tuple[Range, Range]:
    """What a worker keeps and what it gives away."""
    middle = sum(whole) // 2
    low, high = (whole[0], middle), (middle, whole[1])
    return (high, low) if upper else (low, high)


def _joined(one: Range, other: Range) -> Range:
    return min(one[0], other[0]), max(one[1], other[1])


PLAYED: dict[str, Callable[[int], Effort]] = {
    "ring": played_ring,
    "tree": played_tree,
    "recursive halving": played_halving,
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("workers", [2, 3, 4, 5, 7, 8, 12, 16])
def test_effort_is_that_of_the_messages(name: str, workers: int) -> None:
    expected, effort = PLAYED[name](workers), ALGORITHMS[name](workers, SCALARS * BYTES)
    assert effort.messages == expected.messages
    assert effort.bytes == pytest.approx(expected.bytes, rel=1e-12)
    assert effort.added == pytest.approx(expected.added, rel=1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_worker_waits_for_nothing(name: str) -> None:
    assert ALGORITHMS[name](1, 100.0) == Effort(0, 0, 0)


def test_seconds_by_hand() -> None:
    link = Link(alpha=3.0, beta=0.5, gamma=0.25)
    assert ring(4, 8.0).seconds(link) == 3 * 6 + 0.5 * 12 + 0.25 * 6
    assert tree(4, 8.0).seconds(link) == 3 * 4 + 0.5 * 32 + 0.25 * 16
    assert recursive_halving(4, 8.0).seconds(link) == 3 * 4 + 0.5 * 12 + 0.25 * 6
    assert Link.of_rate(10e9, 1e-5) == Link(1e-5, 0.8e-9)


def test_refuses_what_cannot_be() -> None:
    with pytest.raises(UserError, match="0 workers; give 1 or more"):
        ring(0, 1.0)
    with pytest.raises(UserError, match="-1 bytes"):
        tree(2, -1.0)
    with pytest.raises(UserError, match="alpha = inf seconds"):
        Link(float("inf"), 0.0)
    with pytest.raises(UserError, match="0 bits per second; give a number > 0"):
        Link.of_rate(0.0)
