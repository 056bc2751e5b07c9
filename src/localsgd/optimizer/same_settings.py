"""Notices that ranks have come to train with different settings, such as learning rates.

They are compared when all ranks meet, and learning rates in between: every ten seconds a rank
leaves its step and rates in the store, and reads what the next rank has left there. It remembers
its own rates by step, so that both are of one step, however far apart the ranks are. Nothing is
exchanged, and no device is asked. Ranks may differ on purpose, so this is a warning.
"""

from __future__ import annotations

import json
import time
import warnings
from collections import deque
from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from localsgd.basics.messages import read_message
from localsgd.optimizer.consistency import difference
from localsgd.optimizer.start import named_in_group, settings_by_name
from localsgd.wire.presence import Presence

TOLD_SECONDS = 10.0
"""Shortest time between two looks at the next rank."""

REMEMBERED = 1000
"""Changes of the learning rates that a rank remembers."""

Rates = list[float | None]


class SameSettings:
    """Warns once if settings of the inner optimizer part between ranks.

    Args:
        inner: the inner optimizer.
        presence: of this rank.
    """

    def __init__(self, inner: Optimizer, presence: Presence) -> None:
        self._inner = inner
        self._presence = presence
        ranks = presence.peers
        self._name = f"rates of {presence.numbered()}"  # a deep copy has the same presence
        self._next = ranks[(ranks.index(presence.rank) + 1) % len(ranks)]
        self._warned = False
        self._told_at = 0.0
        self._loads = 0
        self._forget()

    def _forget(self) -> None:
        self._rates: deque[tuple[int, Rates]] = deque(maxlen=REMEMBERED)
        self._ahead: tuple[int, Rates] | None = None  # what the next rank has told of a later step

    def loaded(self) -> None:
        """A state was loaded, so that steps begin elsewhere."""
        self._loads += 1
        self._forget()

    def stepped(self, step: int) -> None:
        """Called after every step."""
        rates = rates_of(self._inner)
        if not self._rates or self._rates[-1][1] != rates:
            self._rates.append((step, rates))
        if self._ahead is not None and self._ahead[0] <= step:
            self._compare(*self._ahead)
            self._ahead = None
        if time.monotonic() - self._told_at > TOLD_SECONDS:
            self._told_at = time.monotonic()
            # Also after a warning of this rank: the rank before it may not have noticed.
            self._presence.leave(self._name, json.dumps([self._loads, step, rates]))
            if not self._warned:
                self._look(step)

    def _look(self, step: int) -> None:
        left = self._presence.left(self._name, self._next)
        if left is None:
            return
        kind = tuple[int, int, list[float | None]]
        loads, other, rates = read_message(left, kind, f"rank {self._next}")
        if loads != self._loads:
            return
        if other <= step:
            self._compare(other, rates)
        else:
            self._ahead = other, rates

    def _compare(self, step: int, rates: Rates) -> None:
        """What the next rank had at a step, with what this rank had then, if it remembers."""
        own = next((own for begun, own in reversed(self._rates) if begun <= step), None)
        if own is not None and own != rates:
            both = {self._presence.rank: own, self._next: rates}
            named = {
                rank: {
                    named_in_group("lr", index, len(found)): str(rate)
                    for index, rate in enumerate(found)
                }
                for rank, found in sorted(both.items())
            }
            self._warn(named, step)

    def mine(self) -> str:
        """The settings of this rank, to be compared where all ranks meet."""
        return json.dumps(settings_by_name(self._inner))

    def compare(self, found: Sequence[str], step: int) -> None:
        """Compares the settings of all ranks, as each of its peers does too."""
        ranks = self._presence.peers
        by_rank = {r: read_message(found[r], dict[str, str], f"rank {r}") for r in ranks}
        if self._presence.rank == ranks[0]:
            self._warn(by_rank, step)

    def _warn(self, found: dict[int, dict[str, str]], step: int) -> None:
        differs = difference(found)
        if differs is None or self._warned:
            return
        self._warned = True
        name, said = differs
        warnings.warn(
            f"ranks train with different settings of the inner optimizer: {name}: {said} at step "
            f"{step}; a scheduler that judges by a number must be given the same on all ranks, "
            "such as the mean of their losses",
            stacklevel=2,
        )


def rates_of(inner: Optimizer) -> Rates:
    """γ of each parameter group; `None` for one on a device, which would have to be waited for."""
    rates = (group.get("lr") for group in inner.param_groups)
    return [None if rate is None or _is_on_a_device(rate) else float(rate) for rate in rates]


def _is_on_a_device(rate: object) -> bool:
    return isinstance(rate, Tensor) and rate.device.type != "cpu"
