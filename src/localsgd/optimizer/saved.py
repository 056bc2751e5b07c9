"""Checks that a saved state can be loaded, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from localsgd.errors import UserError
from localsgd.optimizer.settings import Settings
from localsgd.optimizer.start import layouts_of
from localsgd.rows.model_rows import Row

SETTINGS = ("topology", "reducer", "outer", "delay", "inner_state")
"""Settings that must be the same when a state is loaded."""


def fingerprint(rows: Sequence[Row]) -> str:
    """A fingerprint of the synchronised tensors: their names, shapes and dtypes."""
    return layouts_of(rows)


def check_saved(own: Any, expected: Mapping[str, Any], settings: Settings) -> None:
    """Refuses a state that is damaged, of another model, of other settings or of another rank.

    Args:
        own: the saved state.
        expected: the state that would be saved now.
        settings: the settings of the `LocalSGD` that loads it.
    """
    _check_whole(own, expected)
    if own["model"] != expected["model"]:
        raise UserError(
            "the state is of another model: names, shapes or dtypes of its parameters differ; "
            "use the model that it was saved with"
        )
    now = settings.described()
    for what in SETTINGS:
        if own["made_with"].get(what) != now[what]:
            raise UserError(
                f"the state was saved with {what} {own['made_with'].get(what)}, and this LocalSGD "
                f"has {now[what]}; make it with the same, or begin anew from the averaged model"
            )
    rank = expected["rank"]
    if own["rank"] != rank and _is_of_its_rank(own["levels"]):
        raise UserError(
            f"the state is of rank {own['rank']}, and its levels and reducers don't fit rank "
            f"{rank}; let each rank load the state that it saved itself"
        )


def _check_whole(own: Any, expected: Mapping[str, Any]) -> None:
    """Refuses a state that lacks a part."""
    whole = isinstance(own, Mapping)
    missing = [key for key in expected if not whole or key not in own]
    if not missing:
        position = own["position"]
        complete = isinstance(position, Mapping) and set(expected["position"]) <= set(position)
        lengths = len(position["left"]) == len(position["lengths"]) if complete else False
        missing = [] if lengths else ["position"]
    if missing:
        raise UserError(
            f"the state has no {missing[0]!r}, so training can't continue from it; load all that "
            "state_dict() of LocalSGD returned"
        )


def _is_of_its_rank(levels: Sequence[Sequence[Any]]) -> bool:
    """Whether a reducer, or a level inside a block, has state that other ranks do not share."""
    return any(
        _has_tensors(level, inside=index < len(row) - 1)
        for row in levels
        for index, level in enumerate(row)
    )


def _has_tensors(value: Any, inside: bool) -> bool:
    """Whether there are tensors in `value`, under a key `reducer` unless already `inside` of it."""
    if isinstance(value, Tensor):
        return inside
    if isinstance(value, Mapping):
        return any(_has_tensors(part, inside or key == "reducer") for key, part in value.items())
    if isinstance(value, list | tuple):
        return any(_has_tensors(part, inside) for part in value)
    return False
