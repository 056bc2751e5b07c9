"""What `LocalSGD` saves of itself, and goes on from."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self

from localsgd.optimizer.assembled import Assembled
from localsgd.optimizer.saved import check_saved, described, fingerprint


class Resumable(Assembled):
    """The parts of `LocalSGD` with the state that they have come to; its class adds the step."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._guards.part.check_not_shown("load_state_dict", "would be undone at its end")
        super().load_state_dict(state_dict)

    def _own_state(self) -> dict[str, Any]:
        return {
            "rank": self._placement.process,
            "model": fingerprint(self._rows),
            "finished_at": self._finished_at,
            **self._loop.state(),
            "levels": self._models.state(),
            **self._reports.state(),
            "ledger": self.ledger.state(),
            "made_with": {**self._settings.described(), **described(self.inner, self._rows)},
            **({} if self.membership is None else {"membership": self.membership.saved()}),
        }

    def _check_saved(self, state_dict: Mapping[str, Any]) -> None:
        check_saved(state_dict, self._own_state(), self._settings, self._placement.peers)

    def _load_own(self, own: dict[str, Any]) -> None:
        self._finished_at = own["finished_at"]
        self._gradients.watch = None if own["steps"] else self._gradients.watch
        self._loop.load(own)
        self._models.load(own["levels"])
        self._reports.load(own)
        self.ledger.load(own["ledger"])
        if self.membership is not None:
            self.membership.resume(own["membership"])
        self._loop.open()  # unless the state is of the middle of a round
        self._guards.loaded(self._loop.all_averaged)
        self._compared, self._loaded = False, True
        self._together.loaded()
        self._pass()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Rows of its own: deep-copy model and optimizer together, `deepcopy((model, self))`."""
        if self.membership is not None:
            raise TypeError("LocalSGD with fault_tolerance can't be copied; make a second manager")
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        model = copy.deepcopy(self.model, memo)
        peers = len(self._placement.peers)
        rows = new._adopt(copy.deepcopy(self.inner, memo), model, peers)
        presence = self._together.presence
        new._set_up(self._settings, self._placement, presence, rows, watched=not self.steps)
        new._load_own(self._own_state())
        return new

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("LocalSGD holds process groups and can't be pickled; save its state_dict()")
