"""A level: groups of members that agree together.

    agree:  anchor <- outer(anchor, mean_k C(anchor - w_k))       share:  w_k <- anchor

The members of the innermost level are the workers' rows; those of any other are the anchors one
level in. A level knows tensors, weights, a reducer and a wire, and neither models nor data nor the
rest of the hierarchy.

Shapes: g groups of the level hosted here · m members of each hosted here · n scalars of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from localsgd.collective import Collective, Pending
from localsgd.errors import UserError
from localsgd.outer import Outer
from localsgd.reduce import ExactMean, Reducer


class Agreeing(Protocol):
    """What the core loop asks of a level."""

    @property
    def unsettled(self) -> bool:
        """Whether members may differ although they have just agreed (see `delayed.py`)."""
        ...

    def agree(self) -> None: ...

    def share(self) -> None: ...

    def settle(self) -> None:
        """The last agreement: like `agree`, with nothing left under way."""
        ...

    def follow(self) -> None: ...

    def begin_round(self, learning_rate: float) -> None: ...


class Level:
    """Groups whose members agree on a model.

    Plain averaging by a linear reducer keeps no anchor and copies nothing: the members are averaged
    in place and the first hosted member of each group is its anchor. Everything else keeps an
    anchor `[g, n]`, and turns the members into updates where they lie, as they are overwritten by
    `share` in any case.

    Args:
        members: `[g, m, n]`, views of the rows that agree.
        collective: joins them with those hosted elsewhere.
        weights: `[g, m]`, summing to 1 over all members of a group; equal where not given.
        weigh: makes weights anew for every agreement, which need not sum to 1, as they are those of
            updates.
        reducer: from updates to their mean.
        outer: what happens to the mean; `None` is plain averaging.
        anchor: memory `[g, n]` for the anchors where the first member can't be it.
    """

    def __init__(
        self,
        members: Tensor,
        collective: Collective,
        *,
        weights: Tensor | None = None,
        weigh: Callable[[], Tensor] | None = None,
        reducer: Reducer | None = None,
        outer: Outer | None = None,
        anchor: Tensor | None = None,
    ) -> None:
        self.members = members
        self.collective = collective
        self.weights = weights
        self.weigh = weigh
        self.reducer: Reducer = reducer or ExactMean()
        self.outer = outer
        self._learning_rate = 1.0  # of the round at hand
        self._agreed_rate = 1.0  # of the round that agrees
        self._pending: Pending[Tensor] | None = None
        self.agreements = 0
        self.plain = outer is None and weigh is None and self.reducer.linear
        if self.plain:
            self.anchor = members[:, 0] if anchor is None else anchor
        else:
            self.anchor = members[:, 0].clone() if anchor is None else anchor
        self._optimizer = self._make_optimizer(outer)

    def _make_optimizer(self, outer: Outer | None) -> torch.optim.Optimizer | None:
        if outer is None:
            return None
        return outer.optimizer([torch.nn.Parameter(self.anchor, requires_grad=False)])

    @property
    def remembers(self) -> bool:
        """Whether it keeps anything between agreements that a checkpoint needs."""
        return not self.plain or bool(self.reducer.state())

    def begin_round(self, learning_rate: float) -> None:
        """Tells the level γ, the inner learning rate at the first local step of its round."""
        if learning_rate == 0 and self.outer is not None and self.outer.per_learning_rate:
            raise UserError(
                "a round cannot start at a learning rate of 0, as the outer optimizer is fed the "
                "mean update divided by it; let the learning rate start above 0"
            )
        self._learning_rate = learning_rate

    def agree(self) -> None:
        """anchor <- outer(anchor, mean_k C(anchor - w_k))."""
        self.begin_agree()
        self.finish_agree()

    unsettled = False

    def settle(self) -> None:
        self.agree()

    def begin_agree(self) -> None:
        """Starts the reduction. The members are scratch until `share`."""
        if not self.plain:
            torch.sub(self.anchor.unsqueeze(1), self.members, out=self.members)
        weights = self.weights if self.weigh is None else self.weigh()
        self._agreed_rate = self._learning_rate
        self._pending = self.reducer.reduce(self.members, weights, self.collective)

    def finish_agree(self) -> None:
        """Waits for the reduction and moves the anchor."""
        if self._pending is None:
            raise RuntimeError("finish_agree() without begin_agree()")
        mean = self._pending.wait()
        self._pending = None
        self.agreements += 1
        if not self.plain:
            self._step(mean)
        elif mean.data_ptr() != self.anchor.data_ptr():
            self.anchor.copy_(mean)

    def _step(self, update: Tensor) -> None:
        if self._optimizer is None or self.outer is None:
            self.anchor -= update
            return
        group = self._optimizer.param_groups[0]
        scale = self._agreed_rate if self.outer.per_learning_rate else 1.0
        if scale != 1.0:
            update = torch.div(update, scale, out=self.members[:, 0])  # scratch until `share`
        group["params"][0].grad = update.contiguous()
        base = group["lr"]
        group["lr"] = base * scale
        self._optimizer.step()
        group["lr"] = base
        group["params"][0].grad = None

    def share(self) -> None:
        """w_k <- anchor, for every member hosted here."""
        first = 1 if self.members.data_ptr() == self.anchor.data_ptr() else 0
        if first < self.members.shape[1]:
            self.members[:, first:] = self.anchor.unsqueeze(1)

    def follow(self) -> None:
        """anchor <- w_k, where the members have stayed equal without agreeing here."""
        if self.members.data_ptr() != self.anchor.data_ptr():
            self.anchor.copy_(self.members[:, 0])

    def state(self) -> dict[str, Any]:
        """What must be saved: `anchor` where one is kept, the reducer's memory, the outer
        optimizer's state.

        Tensors that belong to groups have g as their first dimension.
        """
        state: dict[str, Any] = {"reducer": self.reducer.state()}
        if not self.plain:
            state["anchor"] = self.anchor
        if self._optimizer is not None:
            state["outer"] = dict(
                self._optimizer.state[self._optimizer.param_groups[0]["params"][0]]
            )
            state["learning_rate"] = self._learning_rate
        return state

    def load(self, state: dict[str, Any]) -> None:
        self.reducer.load(state["reducer"])
        if not self.plain:
            self.anchor.copy_(state["anchor"])
        if self._optimizer is not None:
            saved = {**self._optimizer.state_dict(), "state": {0: state["outer"]}}
            self._optimizer.load_state_dict(saved)
            self._learning_rate = state["learning_rate"]


class Blocks:
    """Groups of one level that differ in size: a `Level` for each, agreeing one after the other."""

    def __init__(self, levels: Sequence[Level], anchors: Tensor) -> None:
        self.levels = tuple(levels)
        self.anchor = anchors

    @property
    def agreements(self) -> int:
        return self.levels[0].agreements

    @agreements.setter
    def agreements(self, count: int) -> None:
        for level in self.levels:
            level.agreements = count

    unsettled = False

    def agree(self) -> None:
        for level in self.levels:
            level.agree()

    def settle(self) -> None:
        self.agree()

    def share(self) -> None:
        for level in self.levels:
            level.share()

    def follow(self) -> None:
        for level in self.levels:
            level.follow()

    def begin_round(self, learning_rate: float) -> None:
        for level in self.levels:
            level.begin_round(learning_rate)

    def state(self) -> dict[str, Any]:
        return {str(index): level.state() for index, level in enumerate(self.levels)}

    def load(self, state: dict[str, Any]) -> None:
        for index, level in enumerate(self.levels):
            level.load(state[str(index)])


def agree_and_share(
    levels: Sequence[Agreeing], first: int = 0, meanwhile: Callable[[], None] | None = None
) -> None:
    """Lets `levels[first:]` agree, innermost first, then hands the anchors down through all levels.

    The members of `levels[:first]` are equal already, as they have averaged their gradients.

    Args:
        meanwhile: called while the first reduction is on its way, where a level can wait for it.
    """
    for level in levels[:first]:
        level.follow()
    for level in levels[first:]:
        if meanwhile is not None and isinstance(level, Level):
            level.begin_agree()
            meanwhile()
            level.finish_agree()
            meanwhile = None
        else:
            level.agree()
    if meanwhile is not None:
        meanwhile()
    _share(levels)


def settle(levels: Sequence[Agreeing], first: int = 0) -> None:
    """The last agreement: of `levels[first:]`, and of all from the first that is unsettled."""
    waiting = (index for index, level in enumerate(levels) if index >= first or level.unsettled)
    start = next(waiting, len(levels))
    if start == len(levels):
        return
    for level in levels[:start]:
        level.follow()
    for level in levels[start:]:
        level.settle()
    _share(levels)


def _share(levels: Sequence[Agreeing]) -> None:
    for level in reversed(levels):
        level.share()
