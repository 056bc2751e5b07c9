"""Checks that all ranks are about to do the same, before tensors are exchanged."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import GenericAlias

from torch.optim import Optimizer

from localsgd.averaging.grid import Grid
from localsgd.basics.messages import read_messages
from localsgd.errors import UserError
from localsgd.optimizer.consistency import check_same_values, checksum
from localsgd.optimizer.peer_errors import others_named_lost
from localsgd.optimizer.same_settings import SameSettings
from localsgd.rows.model_rows import Row
from localsgd.wire.presence import Event, Presence, named


class Together:
    """Tells the other ranks what this rank's optimizer does.

    Args:
        presence: of this rank; `None` if it is alone.
        rows: of this worker.
        grid: the ranks of all workers.
        inner: the inner optimizer.

    Attributes:
        lockstep: whether gradients are averaged in the next step.
    """

    def __init__(
        self, presence: Presence | None, rows: Sequence[Row], grid: Grid, inner: Optimizer
    ) -> None:
        self.presence = presence
        self.grid = grid
        self.lockstep = False
        self._rows = rows
        self._settings = None if presence is None else SameSettings(inner, presence)

    def named(self) -> AbstractContextManager[None]:
        """A context in which a transport error caused by another rank becomes `PeerLost`."""
        return others_named_lost(self.presence)

    def passes(self, step: int) -> None:
        """Announces the next step, in which gradients may be exchanged."""
        if self.presence is not None:
            what = "the averaging of gradients" if self.lockstep else "training"
            self.presence.passes(Event(what, step))

    def stepped(self, steps: int) -> None:
        """Looks at the learning rates of the step that was taken last."""
        if self._settings is not None:
            self._settings.stepped(steps)

    def loaded(self) -> None:
        """Forgets learning rates, as a state was loaded."""
        if self._settings is not None:
            self._settings.loaded()

    def syncs(self, steps: int, level: int | None) -> None:
        """Announces the sync after this many steps, up to this level if there are several."""
        if self.presence is not None:
            what = "the sync" if level is None else f"the sync of level {level}"
            self.presence.event = Event(what, steps)

    def check_start(self, steps: int, position: str, loaded: bool, inner: str) -> None:
        """Raises on all ranks if positions in the rounds differ, or weights before any training.

        Args:
            steps, position: of this rank.
            loaded: whether weights may differ.
            inner: the state of the inner optimizer, if that must be the same.
        """
        if self.presence is None:
            return
        found = self._meet("step()", steps, [position, "" if loaded else self._weights(), inner])
        check_same_values(
            [there for there, *_ in found],
            "their positions in the rounds",
            "load states of the same step on all ranks",
            range(len(found)),
        )
        for peers in self.grid.ranks:
            check_same_values(
                [found[rank][1] for rank in peers],
                "weights at the first step",
                "they have been changed since LocalSGD was made; change or load them alike on all "
                "ranks, and before",
                peers,
            )
            check_same_values(
                [found[rank][2] for rank in peers],
                "states of the inner optimizer",
                "gradients are averaged from here on, and no models, so that workers would part "
                'for good; load the same state on all ranks, or choose average="models"',
                peers,
            )
        self.passes(steps + 1)

    def differ(self, call: str, steps: int, equal: bool) -> bool:
        """Whether ranks differ in their weights although they should be `equal`.

        Raises:
            UserError: on all ranks, if not all are in this call.
        """
        if self.presence is None:
            return False
        found = self._meet(call, steps, [self._weights() if equal else ""])
        return any(len({found[rank][0] for rank in peers}) > 1 for peers in self.grid.ranks)

    def says_not_finite(self) -> None:
        """Announces that this rank is left out of the next mean."""
        if self.presence is not None:
            self.presence.mark()

    def refuse_not_finite(self) -> None:
        """Some rank can't be left out of the mean of a fragment."""
        assert self.presence is not None
        raise UserError(
            f"{named(self.presence.marked())} had weights that are not finite "
            f"{self.presence.event}, in a fragment of the model that is all of one tensor, so that "
            "they could not be left out; ranks have kept their own weights there, or the last mean "
            "if there is one; give fewer fragments, lower the learning rate or clip gradients"
        )

    def tell_of_not_finite(self, goes_on: bool) -> bool:
        """Raises or warns that ranks were left out of a mean; returns whether this one was."""
        assert self.presence is not None
        ranks = self.presence.marked()
        message = (
            f"{named(ranks)} had weights that are not finite {self.presence.event}, and all hold "
            "the mean of the others now"
        )
        if len(ranks) == len(self.presence.peers):
            raise UserError(
                f"all ranks had weights that are not finite {self.presence.event}; continue from "
                "the last saved state, with a lower learning rate or clipped gradients"
            )
        if not goes_on:
            raise UserError(
                f"{message}; lower the learning rate or clip gradients, or let such ranks continue "
                'from that mean by not_finite="leave_out"'
            )
        if self.presence.rank == min(ranks) and self.grid.position(min(ranks)) == 0:
            warnings.warn(message, stacklevel=2)
        return self.presence.rank in ranks

    def meet(self, call: str, steps: int, values: Sequence[str]) -> list[tuple[str, ...]]:
        """The `values` of all ranks, which must all be in this call."""
        if self.presence is None:
            return [tuple(values)]
        found = self.presence.meet(Event(call, steps, by_hand=True), json.dumps(values))
        return read_messages(found, GenericAlias(tuple, (str,) * len(values)))

    def _meet(self, call: str, steps: int, values: Sequence[str]) -> list[list[str]]:
        """As `meet`; settings are compared too."""
        assert self._settings is not None
        found = self.meet(call, steps, [*values, self._settings.mine()])
        self._settings.compare([settings for *_, settings in found], steps)
        return [rest for *rest, _ in found]

    def _weights(self) -> str:
        return ",".join(checksum(row.fill()) for row in self._rows)
