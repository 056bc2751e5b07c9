"""What all ranks do together: each says what it is about to do before tensors cross."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager

from torch import nn

from localsgd.errors import UserError
from localsgd.optimizer.consistency import check_told, checksum
from localsgd.optimizer.peer_errors import others_named_lost
from localsgd.rows.model_rows import Row
from localsgd.wire.presence import Event, Presence, named


class Together:
    """One optimizer's calls, as the other ranks see them.

    Args:
        presence: of this rank; `None` where it is alone.
        model: the user's own module.
        rows: of this worker.
    """

    def __init__(self, presence: Presence | None, model: nn.Module, rows: Sequence[Row]) -> None:
        self.presence = presence
        self._model = model
        self._rows = rows

    def named(self) -> AbstractContextManager[None]:
        """Inside, an error of the transport because of another rank becomes `PeerLost`."""
        return others_named_lost(self.presence)

    def passes(self, step: int) -> None:
        """The step of this number is the next; until its sync, gradients may cross."""
        if self.presence is not None:
            self.presence.passes(Event("the averaging of gradients", step))

    def syncs(self, steps: int, level: int | None) -> None:
        """The sync after so many steps begins, out to this level where there are several."""
        if self.presence is not None:
            what = "the sync" if level is None else f"the sync of level {level}"
            self.presence.event = Event(what, steps)

    def check_start(self, steps: int, position: str, loaded: bool) -> None:
        """Refuses on all ranks where some are elsewhere in their rounds, or weights differ although
        nobody has trained.
        """
        if self.presence is None:
            return
        told = [position, "" if loaded else self._weights()]
        found = self._meet("step()", steps, told)
        check_told(
            [place for place, _ in found],
            "where they are in their rounds",
            "load states of the same step on all ranks",
        )
        check_told(
            [weights for _, weights in found],
            "weights at the first step",
            "they have been changed since LocalSGD was made; change or load them alike on all "
            "ranks, and before",
        )
        self.passes(steps + 1)

    def differ(self, call: str, steps: int, equal: bool) -> bool:
        """Whether ranks differ in their weights although they should be `equal`.

        Raises:
            UserError: on all ranks, where not all are in this call.
        """
        if self.presence is None:
            return False
        found = self._meet(call, steps, [self._weights() if equal else ""])
        return len({weights for (weights,) in found}) > 1

    def says_not_finite(self) -> None:
        """This rank is left out of the mean that it is about to take part in."""
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
        """Says on all ranks, or on one, who was left out; returns whether this one was."""
        assert self.presence is not None
        ranks = self.presence.marked()
        said = (
            f"{named(ranks)} had weights that are not finite {self.presence.event}, and all hold "
            "the mean of the others now"
        )
        if len(ranks) == self.presence.processes:
            raise UserError(
                f"all ranks had weights that are not finite {self.presence.event}; go on from the "
                "last state that was saved, with a lower learning rate or clipped gradients"
            )
        if not goes_on:
            raise UserError(
                f"{said}; lower the learning rate or clip gradients, or let such ranks go on from "
                'that mean by not_finite="leave_out"'
            )
        if self.presence.rank == min(ranks):
            warnings.warn(said, stacklevel=2)
        return self.presence.rank in ranks

    def _meet(self, call: str, steps: int, told: Sequence[str]) -> list[list[str]]:
        assert self.presence is not None
        found = self.presence.meet(Event(call, steps, by_hand=True), json.dumps(told))
        return [json.loads(text) for text in found]

    def _weights(self) -> str:
        return ",".join(checksum(row.values) for row in self._rows)
