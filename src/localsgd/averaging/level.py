"""A level: groups of members that are averaged together.

    average:  anchor <- outer(anchor, mean_k C(anchor - w_k))       share:  w_k <- anchor

The members of the innermost level are the workers' rows; those of any other level are the anchors
of the level inside. A level knows tensors, weights, a reducer and a collective, but no models, no
data and no other levels.

Shapes: g groups of the level hosted here · m members of each hosted here · n scalars of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from localsgd.averaging.outer import Outer
from localsgd.errors import UserError
from localsgd.reduce import ExactMean, Reducer
from localsgd.reduce.compressor import scale_dtype
from localsgd.wire import Collective, Pending


@dataclass(frozen=True)
class Spare:
    """How a member that is not finite is left out, and the others learn of it.

    Args:
        places: in the row, of scalars that no tensor has: the first carries the share that is left
            out. Where there is none, nobody can be left out, and that is an error.
        says: called here before, except on a GPU, which is not asked.
        refuse: raises, on all processes, where a member should have been left out and can't be.
        seen: whether the rows have been read just now and are finite; asked by the innermost level.
    """

    places: Sequence[int]
    says: Callable[[], None]
    refuse: Callable[[], None] = lambda: None
    seen: Callable[[], bool] = lambda: False

    @property
    def place(self) -> int | None:
        return self.places[0] if self.places else None

    def within(self, start: int, stop: int) -> Spare:
        """The same for scalars `[start, stop)` of the row."""
        return replace(self, places=[p - start for p in self.places if start <= p < stop])


class Averaging(Protocol):
    """What the core loop asks of a level.

    Between `average` and `share` the members are scratch. All processes of a group call the same in
    the same order.
    """

    @property
    def may_differ(self) -> bool:
        """Whether members may differ right after a sync (see `delay.py`)."""
        ...

    def average(self) -> None:
        """anchor <- outer(anchor, mean_k C(anchor - w_k))."""
        ...

    def share(self) -> None:
        """w_k <- anchor, for every member hosted here."""
        ...

    def final_average(self) -> None:
        """Makes the last sync: like `average`, but nothing stays on its way."""
        ...

    def catch_up(self) -> None:
        """anchor <- w_k, where the members have stayed equal without averaging here."""
        ...

    def begin_round(self, learning_rate: float) -> None:
        """Tells the level the inner learning rate at the first local step of its round."""
        ...


class Level:
    """Groups whose members average their models.

    Plain averaging with a linear reducer keeps no anchor and copies nothing: the members are
    averaged in place, and the first hosted member of each group is its anchor. Otherwise the level
    keeps an anchor `[g, n]`, and turns the members into updates in place, since `share` overwrites
    them anyway.

    Args:
        members: `[g, m, n]`, views of the rows that are averaged.
        collective: joins them with those hosted elsewhere.
        weights: `[g, m]`, with a sum of 1 over all members of a group; equal if not given.
        units: all weights are multiples of 1 / units, so that half precision can't blur the share
            that is left out; M if they are equal.
        weigh: returns new weights at every sync; as weights of updates, they need not sum to 1.
        reducer: computes the mean of updates.
        outer: the outer optimizer; `None` is plain averaging.
        anchor: memory `[g, n]` for the anchors if the first member can't be used.
        spare: allows a member that is not finite to be left out of a linear mean.

    Attributes:
        left_out: the fraction of members that the last mean left out, `[g]`; `None` if none.
    """

    def __init__(
        self,
        members: Tensor,
        collective: Collective,
        *,
        weights: Tensor | None = None,
        units: int | None = None,
        weigh: Callable[[], Tensor] | None = None,
        reducer: Reducer | None = None,
        outer: Outer | None = None,
        anchor: Tensor | None = None,
        spare: Spare | None = None,
    ) -> None:
        self.members = members
        self.collective = collective
        self.weights = weights
        self._units = collective.members if weights is None else units
        self.weigh = weigh
        self.reducer: Reducer = reducer or ExactMean()
        self.outer = outer
        self._learning_rate = 1.0  # of the current round
        self._averaged_rate = 1.0  # of the round that synchronises
        self._pending: Pending[Tensor] | None = None
        self.syncs = 0
        self.plain = outer is None and weigh is None and self.reducer.linear
        if self.plain:
            self.anchor = members[:, 0] if anchor is None else anchor
        else:
            self.anchor = members[:, 0].clone() if anchor is None else anchor
        self._optimizer = self._make_optimizer(outer)
        self._spare = spare if weigh is None and collective.members > 1 else None
        self.left_out: Tensor | None = None
        self._own: Tensor | None = None  # members of a mean that nobody can be left out of

    def _make_optimizer(self, outer: Outer | None) -> torch.optim.Optimizer | None:
        if outer is None:
            return None
        return outer.optimizer([torch.nn.Parameter(self.anchor, requires_grad=False)])

    @property
    def remembers(self) -> bool:
        """Whether the level keeps a state between syncs that a checkpoint needs."""
        return not self.plain or bool(self.reducer.state())

    def begin_round(self, learning_rate: float) -> None:
        """Tells the level γ, the inner learning rate at the first local step of its round."""
        if learning_rate == 0 and self.outer is not None and self.outer.per_learning_rate:
            raise UserError(
                "a round cannot start at a learning rate of 0, since the outer optimizer gets the "
                "mean update divided by it; let the learning rate start above 0"
            )
        self._learning_rate = learning_rate

    def average(self) -> None:
        """anchor <- outer(anchor, mean_k C(anchor - w_k))."""
        self.begin_average()
        self.finish_average()

    may_differ = False

    def final_average(self) -> None:
        self.average()

    def begin_average(self) -> None:
        """Starts the reduction. The members' values are undefined until `share`."""
        if not self.plain:
            torch.sub(self.anchor.unsqueeze(1), self.members, out=self.members)
        if self._spare is not None and self.reducer.linear:
            if not (self.plain and self._spare.seen()):
                leave_out(self.members, self._spare)
            on_cpu = self.members.device.type == "cpu"
            if self.plain and self._spare.place is None and on_cpu:
                self._own = self.members.clone()
        weights = self.weights if self.weigh is None else self.weigh()
        self._averaged_rate = self._learning_rate
        with self._given_back():
            self._pending = self.reducer.reduce(self.members, weights, self.collective)

    def finish_average(self) -> None:
        """Waits for the reduction and moves the anchor."""
        self.take(self.received())

    def received(self) -> Tensor:
        """Waits for the reduction: the mean `[g, n]`, of which the anchor knows nothing yet."""
        if self._pending is None:
            raise RuntimeError("finish_average() without begin_average()")
        pending, self._pending = self._pending, None
        with self._given_back():
            return pending.wait()

    def take(self, mean: Tensor) -> None:
        """Moves the anchor by the `mean [g, n]` of the members."""
        self.syncs += 1
        if self._spare is not None and self._spare.place is None and self.reducer.linear:
            self._check_finite(mean, self._spare)
        elif self._spare is not None and self._spare.place is not None and self.reducer.linear:
            self.left_out = made_up(mean, self._spare.place, self._units)
            if self.left_out is not None and not self.plain:
                mean.nan_to_num_()  # If no member is left, the anchor stays.
        if not self.plain:
            self._step(mean)
        elif mean.data_ptr() != self.anchor.data_ptr():
            self.anchor.copy_(mean)

    @property
    def leaves_out(self) -> bool:
        """Whether a member that is not finite can be left out of a linear mean."""
        return self._spare is not None and self._spare.place is not None

    def _check_finite(self, mean: Tensor, spare: Spare) -> None:
        """Refuses a mean that is not finite. The members are as before, or at the anchor."""
        own, self._own = self._own, None
        if mean.device.type == "cpu" and not bool(mean.isfinite().all()):
            self.members.copy_(self.anchor.unsqueeze(1) if own is None else own)
            spare.refuse()

    @contextmanager
    def _given_back(self) -> Generator[None]:
        """Turns the members from updates into models again if a reduction fails.

        They get their own models, or the anchor if the reducer may have overwritten the updates.
        """
        try:
            yield
        except BaseException:
            own = self.reducer.only_reads and self.weights is None
            if not self.plain and own:
                torch.sub(self.anchor.unsqueeze(1), self.members, out=self.members)
            elif not self.plain:
                self.members.copy_(self.anchor.unsqueeze(1).expand_as(self.members))
            raise

    def _step(self, update: Tensor) -> None:
        if self._optimizer is None or self.outer is None:
            self.anchor -= update
            return
        group = self._optimizer.param_groups[0]
        scale = self._averaged_rate if self.outer.per_learning_rate else 1.0
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

    def catch_up(self) -> None:
        """anchor <- w_k, if the members have stayed equal without averaging here."""
        if self.members.data_ptr() != self.anchor.data_ptr():
            self.anchor.copy_(self.members[:, 0])

    def state(self) -> dict[str, Any]:
        """The state to save: the anchor if there is one, and those of reducer and outer optimizer.

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
    """Groups of one level that differ in size: a `Level` for each, averaged one by one."""

    def __init__(self, levels: Sequence[Level], anchors: Tensor) -> None:
        self.levels = tuple(levels)
        self.anchor = anchors

    @property
    def syncs(self) -> int:
        return self.levels[0].syncs

    @syncs.setter
    def syncs(self, count: int) -> None:
        for level in self.levels:
            level.syncs = count

    may_differ = False

    def average(self) -> None:
        for index, level in enumerate(self.levels):
            try:
                level.average()
            except BaseException:
                for done in self.levels[:index]:
                    done.share()
                raise

    def final_average(self) -> None:
        self.average()

    def share(self) -> None:
        for level in self.levels:
            level.share()

    def catch_up(self) -> None:
        for level in self.levels:
            level.catch_up()

    def begin_round(self, learning_rate: float) -> None:
        for level in self.levels:
            level.begin_round(learning_rate)

    def state(self) -> dict[str, Any]:
        return {str(index): level.state() for index, level in enumerate(self.levels)}

    def load(self, state: dict[str, Any]) -> None:
        for index, level in enumerate(self.levels):
            level.load(state[str(index)])


def finite(members: Tensor) -> Tensor:
    """Which of the members `[g, m, n]` are finite: bools `[g, m]`, found by one read."""
    return members.sum(-1, dtype=scale_dtype(members.dtype)).isfinite()


def leave_out(members: Tensor, spare: Spare) -> None:
    """Members `[g, m, n]` that are not finite become zero, with a 1 in the spare scalar; without
    such a scalar they stay as they are.
    """
    kept = finite(members)
    if members.device.type == "cpu":
        if bool(kept.all()):
            return
        spare.says()
    if spare.place is None:
        return
    members.masked_fill_(~kept.unsqueeze(-1), 0)
    members[..., spare.place] = (~kept).to(members.dtype)


def made_up(mean: Tensor, spare: int, units: int | None) -> Tensor | None:
    """Turns `mean [g, n]` into the mean of the members that were not left out, NaN without any.

    Returns the fraction that was left out, `[g]`, or `None` if none was. A GPU is not waited for,
    so there the fraction may be 0. Half precision is divided in float32 and rounded once.

    Args:
        spare: the place of the fraction in the row.
        units: the fraction is a multiple of 1 / units, if that is known.
    """
    share = mean[:, spare].to(scale_dtype(mean.dtype), copy=True)
    if mean.device.type == "cpu" and not bool(share.any()):
        return None
    if units is not None:  # without what half precision has rounded
        share = share.mul_(units).round_().div_(units)
    mean[:, spare] = 0
    mean.div_((1 - share).unsqueeze(-1))
    return share


def average_and_share(
    levels: Sequence[Averaging], first: int = 0, meanwhile: Callable[[], None] | None = None
) -> None:
    """Averages `levels[first:]`, innermost first, then shares the anchors through all levels.

    The members of `levels[:first]` are equal already, since they have averaged their gradients.

    Args:
        meanwhile: called during the first reduction, if its level can wait for it separately.
    """
    for level in levels[:first]:
        level.catch_up()
    with _shared_in_any_case() as done:
        done += levels[:first]
        for level in levels[first:]:
            if meanwhile is not None and isinstance(level, Level):
                level.begin_average()
                meanwhile()
                level.finish_average()
                meanwhile = None
            else:
                level.average()
            done.append(level)
        if meanwhile is not None:
            meanwhile()


def final_sync(levels: Sequence[Averaging], first: int = 0) -> None:
    """Makes the last sync, of `levels[first:]` and of levels whose members may differ."""
    waiting = (index for index, level in enumerate(levels) if index >= first or level.may_differ)
    start = next(waiting, len(levels))
    if start == len(levels):
        return
    for level in levels[:start]:
        level.catch_up()
    with _shared_in_any_case() as done:
        done += levels[:start]
        for level in levels[start:]:
            level.final_average()
            done.append(level)


@contextmanager
def _shared_in_any_case() -> Generator[list[Averaging]]:
    """Shares the levels that are put into the list at the end, outermost first.

    It does so even if a level further out fails; otherwise members would keep updates instead of
    models.
    """
    done: list[Averaging] = []
    try:
        yield done
    finally:
        for level in reversed(done):
            level.share()
