"""Syncs that overlap with training: means that arrive late, fragments that take turns.

    at sync a:   w_k[q] <- w_k[q] + c (anchor[q] - s_k[q])    q = (a - d) mod P has arrived
                 s_k[p] <- w_k[p], and its mean sets out      p = a mod P

A row is cut into P fragments. Each sync starts the mean of the next fragment, and applies the mean
that was started d syncs before; the training in between is kept. P = 1, d = 1 is delayed averaging
(Wang et al. 2020, "Overlap Local-SGD"; the mean of one round is sent during the next); P > 1 is the
schedule of Streaming DiLoCo (Douillard et al. 2025), which needs 1/P of the bandwidth at a time.
With d = 0 every fragment is a plain level.

With c = 1 a worker moves to the mean plus its own progress since. A round then multiplies its
deviation from the mean by (A - 1), if local steps alone multiply it by A: if they contract fast
(A near 0) it hardly shrinks, and if momentum overshoots (A < 0) it grows. A smaller c makes that
A - c, and moves the workers' mean just as far (Streaming DiLoCo mixes by 1/2, Overlap Local-SGD
pulls back by 0.6).

A sync here is the sync of one fragment: with H local steps between syncs each scalar is averaged
every P H steps, and d syncs are a delay of d H steps.

Shapes: g groups · m members of each hosted here · n scalars of a row · s scalars of a fragment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from localsgd.averaging.level import Level, finite
from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.reduce.ordered import OrderedMean

MakeLevel = Callable[[Tensor, int, int], Level]
"""Makes the level over the members `[g, m, s]` of a fragment, scalars `[start, stop)` of a row."""


@dataclass(frozen=True)
class Delay:
    """How a level's syncs are spread over time: means that arrive late, fragments in turns.

    Worker k has weights w_k, and the fragments of a row are w_k[0] to w_k[P-1]. At sync a

        w_k[q] <- w_k[q] + c (anchor[q] - s_k[q])    q = (a - d) mod P, whose mean has arrived
        s_k[p] <- w_k[p], and its mean sets out      p = a mod P

    with the mean of all s_k[q] as the anchor, or what an outer optimizer makes of it.

    P = 1, d = 1 is delayed averaging (Wang, Liang, Joshi 2020, "Overlap Local-SGD"); P > 1 is the
    schedule of Streaming DiLoCo (Douillard et al. 2025). With H steps between syncs a scalar is
    averaged every P H steps.

    Args:
        fragments: P, the fragments of a row; they synchronise in turn.
        syncs: d, the number of syncs after which a mean is applied; 0 to P.
        correction: c, in (0, 1]; it matters only with a delay.

    Raises:
        UserError: `fragments` or `syncs` is no whole number in its range, or `correction` is no
            number in (0, 1].
    """

    fragments: int = 1
    syncs: int = 0
    correction: float = 1.0

    def __post_init__(self) -> None:
        for name in ("fragments", "syncs"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise UserError(
                    f"Delay({name}={value!r}) is no whole number; give one, such as {name}=4"
                )
        if not isinstance(self.correction, Real) or isinstance(self.correction, bool):
            raise UserError(
                f"Delay(correction={self.correction!r}) is no number; give one in (0, 1]"
            )
        if self.fragments < 1:
            raise UserError(
                f"a row cannot be cut into {plural(self.fragments, 'fragment')}; give 1 or more"
            )
        if not 0 <= self.syncs <= self.fragments:
            raise UserError(
                f"a delay of {plural(self.syncs, 'sync')} with "
                f"{plural(self.fragments, 'fragment')} would send a fragment again before it has "
                "arrived; give 0 to the number of fragments"
            )
        if not 0 < self.correction <= 1:
            raise UserError(
                f"a correction of {self.correction} does not bring workers together; "
                "give one in (0, 1], 1 for all the way"
            )

    @property
    def none(self) -> bool:
        """Whether there is one fragment and no delay."""
        return self.fragments == 1 and self.syncs == 0


NO_DELAY = Delay()
"""One fragment and no delay."""


class Fragmented:
    """A level that averages fragment by fragment, with means applied late.

    With a delay it keeps two more rows for each member: what was sent, and what is on the wire.

    Args:
        members: `[g, m, n]`, views of the rows that are averaged.
        make: makes the level of one fragment.
        delay: number of fragments and delay.
        multiple: fragments begin at multiples of this many scalars.
    """

    def __init__(self, members: Tensor, make: MakeLevel, delay: Delay, multiple: int) -> None:
        self.members = members
        self.delay = delay
        self.syncs = 0
        self._turn = 0
        self._bounds = _cut(members.shape[-1], delay.fragments, multiple)
        self._travelling = members.clone() if delay.syncs else members
        self._sent = members.clone() if delay.syncs else members
        self.levels = [
            make(self._travelling[..., start:stop], start, stop) for start, stop in self._bounds
        ]
        if delay.correction < 1 and any(level.outer is not None for level in self.levels):
            raise UserError(
                f"a correction of {delay.correction:g} leaves workers behind an anchor that an "
                "outer optimizer has moved; give 1, or plain averaging"
            )
        self._under_way: list[int] = []
        self._arrived: set[int] = set()
        self._refused: dict[int, Exception] = {}
        self.may_differ = False

    @property
    def anchor(self) -> Tensor:
        """The last average of each fragment, `[g, n]`."""
        return torch.cat([level.anchor for level in self.levels], dim=-1)

    @property
    def remembers(self) -> bool:
        return True

    def average(self) -> None:
        """Applies the mean that is due and starts the next one."""
        self.syncs += 1
        self.may_differ = True
        index = self._turn % self.delay.fragments
        self._turn += 1
        if not self.delay.syncs:
            self.levels[index].average()
            return
        if len(self._under_way) == self.delay.syncs:
            self._apply(self._under_way[0])
        start, stop = self._bounds[index]
        for copy in (self._sent, self._travelling):
            copy[..., start:stop] = self.members[..., start:stop]
        self.levels[index].begin_average()
        self._under_way.append(index)

    def share(self) -> None:
        """Shares a fragment that is not delayed; a delayed one is applied when it arrives."""
        if not self.delay.syncs and self._turn:
            self.levels[(self._turn - 1) % self.delay.fragments].share()

    def final_average(self) -> None:
        """Applies all means that are on their way, then averages all fragments exactly.

        This last sync is not compressed: workers have trained beyond their anchors, and no later
        sync could make up for what compression loses. A member that is not finite in one fragment
        is left out of all that can leave one out.
        """
        while self._under_way:
            self._apply(self._under_way[0])
        self.syncs += 1
        lost = ~finite(self.members).unsqueeze(-1)
        for (start, stop), level in zip(self._bounds, self.levels, strict=True):
            if level.leaves_out:
                self.members[..., start:stop].masked_fill_(lost, torch.nan)
            if self.delay.syncs:
                self._travelling[..., start:stop] = self.members[..., start:stop]
            usual = level.reducer
            level.reducer = usual if usual.linear else OrderedMean()
            try:
                level.average()
            finally:
                level.reducer = usual
            if self.delay.syncs:
                self.members[..., start:stop] = level.anchor.unsqueeze(1)
            else:
                level.share()
        self.may_differ = False

    @property
    def settled(self) -> list[Level]:
        """The levels of fragments without a mean that has arrived and is not due yet."""
        return [level for index, level in enumerate(self.levels) if index not in self._arrived]

    def _apply(self, index: int) -> None:
        start, stop = self._bounds[index]
        try:
            self._arrive(index)
        except Exception:
            self._under_way.remove(index)
            self._refused.pop(index, None)
            raise
        members = self.members[..., start:stop]
        way = self.levels[index].anchor.unsqueeze(1) - self._sent[..., start:stop]
        members.add_(way, alpha=self.delay.correction)
        if self.levels[index].left_out is not None:
            anchor = self.levels[index].anchor.unsqueeze(1)
            members.copy_(torch.where(members.isfinite().all(-1, keepdim=True), members, anchor))
        self._under_way.remove(index)
        self._arrived.discard(index)

    def _arrive(self, index: int) -> None:
        """Waits for a mean. One that was refused before it was due is refused again when it is due,
        as the other processes hear of it only then.
        """
        if index in self._refused:
            raise self._refused[index]
        if index not in self._arrived:
            try:
                self.levels[index].finish_average()
            except Exception as error:
                self._refused[index] = error
                raise
            self._arrived.add(index)

    def catch_up(self) -> None:
        """anchor <- w_k, if the members have stayed equal without averaging here."""
        if self.delay.syncs:
            self._travelling.copy_(self.members)
        for level in self.levels:
            level.catch_up()
        self.may_differ = False

    def begin_round(self, learning_rate: float) -> None:
        """Sets γ of the fragment whose round begins: the one just sent, or all if all are equal."""
        if not self.may_differ:
            for level in self.levels:
                level.begin_round(learning_rate)
        else:
            self.levels[(self._turn - 1) % self.delay.fragments].begin_round(learning_rate)

    def state(self) -> dict[str, Any]:
        """The state to save, like `Level.state`.

        It waits for means that are on the wire; they are applied when they are due.
        """
        for index in self._under_way:
            self._arrive(index)
        states = {str(index): level.state() for index, level in enumerate(self.levels)}
        memory: dict[str, Any] = {key: own.pop("reducer") for key, own in states.items()}
        if self._under_way:
            memory["sent"] = self._sent
        return {
            "reducer": memory,
            "fragments": states,
            "turn": self._turn,
            "may_differ": self.may_differ,
            "under_way": list(self._under_way),
            "means": {str(index): self.levels[index].anchor for index in self._under_way},
        }

    def load(self, state: dict[str, Any]) -> None:
        for index, level in enumerate(self.levels):
            own = state["fragments"][str(index)]
            level.load({**own, "reducer": state["reducer"][str(index)]})
        self._turn = state["turn"]
        self.may_differ = state["may_differ"]
        self._under_way = list(state["under_way"])
        self._arrived = set(self._under_way)
        self._refused.clear()
        if self._under_way:
            self._sent.copy_(state["reducer"]["sent"])
        for index in self._under_way:
            self.levels[index].anchor.copy_(state["means"][str(index)])


def _cut(length: int, count: int, multiple: int) -> list[tuple[int, int]]:
    """The bounds of `count` fragments, as even as multiples allow."""
    units = length // multiple
    if units < count:
        raise UserError(
            f"{plural(count, 'fragment')} of a row of {plural(length, 'scalar')} would be shorter "
            f"than {multiple}; give at most {max(1, units)}"
        )
    ends = [multiple * (units * index // count) for index in range(count)] + [length]
    return list(pairwise(ends))
