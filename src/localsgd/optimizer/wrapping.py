"""An optimizer that wraps another one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from localsgd.basics.files import as_saved
from localsgd.errors import UserError

KEY = "local_sgd"
"""Key under which `state_dict` holds what it adds to the inner optimizer's state."""


def called_by(function: str) -> bool:
    """Whether a function of this name is among the callers."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False


class Wrapping(Optimizer):
    """An optimizer whose groups and state are always those of an inner optimizer.

    It saves the inner optimizer's state and a part of its own, and calls hooks as `Optimizer` does.
    """

    inner: Optimizer

    def _wrap(self, inner: Optimizer) -> None:
        if isinstance(inner, Wrapping):
            raise UserError("the inner optimizer is a LocalSGD already; give the one inside it")
        self.inner = inner
        # Hooks and profiling as in Optimizer.__init__, without state and groups of its own.
        super().__setstate__({})

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.inner.param_groups = groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state

    @state.setter
    def state(self, state: Any) -> None:
        self.inner.state = state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.inner.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.inner.defaults = defaults

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state and, under `"local_sgd"`, all that resuming needs.

        It belongs to this rank, as do the model's weights in the middle of a round: each rank saves
        both.
        """
        if called_by("_get_optim_state_dict"):
            raise UserError(
                "torch.distributed.checkpoint.state_dict drops what LocalSGD remembers (rounds, "
                "anchors, error memory); call localsgd.save(folder, model, optimizer) in place of "
                "it, or give it optimizer.inner for the inner optimizer's state alone"
            )
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        state = {**self.inner.state_dict(), KEY: self._own_state()}
        for change in self._optimizer_state_dict_post_hooks.values():
            changed = change(self, state)
            state = state if changed is None else changed
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a `state_dict` of this rank; load the model's weights as well.

        Raises:
            UserError: the state is a plain optimizer's, or was saved with other settings.
        """
        state = dict(state_dict)
        for change in self._optimizer_load_state_dict_pre_hooks.values():
            changed = change(self, state)
            state = state if changed is None else changed
        self.check_state_dict(state)
        own = state.pop(KEY)
        self.inner.load_state_dict(state)
        self._load_own(own)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raises a `UserError` if a state can't be loaded; changes nothing."""
        with as_saved("the state", "load all that state_dict() of LocalSGD returned"):
            self._check_state_dict(state_dict)

    def _check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if KEY not in state_dict:
            raise UserError(
                f'the state has no "{KEY}" part, so it is a plain optimizer\'s; load it with '
                "optimizer.inner.load_state_dict(...) to begin local SGD from there"
            )
        _check_inner(state_dict)
        self._check_saved(state_dict)
        sizes = [
            [len(group["params"]) for group in groups]
            for groups in (state_dict["param_groups"], self.param_groups)
        ]
        if sizes[0] != sizes[1]:
            raise UserError(
                f"the state is of groups of {sizes[0]} parameters, and the inner optimizer has "
                f"groups of {sizes[1]}; make it with the same groups"
            )

    # By the optimizer that this is a part of.

    def _own_state(self) -> dict[str, Any]:
        """The state that this optimizer adds to the inner optimizer's."""
        raise NotImplementedError

    def _check_saved(self, state_dict: Mapping[str, Any]) -> None:
        """Raises if what it added can't be loaded; called before anything is changed."""
        raise NotImplementedError

    def _load_own(self, own: dict[str, Any]) -> None:
        """Loads what `_own_state` returned."""
        raise NotImplementedError


def _check_inner(state: Any) -> None:
    """Raises for what is no optimizer's state, as far as that can be seen of any optimizer."""
    for parameter, values in state["state"].items():
        if isinstance(parameter, int) and not isinstance(values, Mapping):
            raise TypeError(f"its state of parameter {parameter} is no mapping")
    for group in state["param_groups"]:
        if not all(isinstance(parameter, int | str) for parameter in group["params"]):
            raise TypeError("a group has other parameters than numbers and names")
