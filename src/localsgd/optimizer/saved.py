"""Whether a state that was saved can be loaded here, asked before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from localsgd.errors import UserError
from localsgd.optimizer.settings import Settings
from localsgd.rows.model_rows import Row

SETTINGS = ("topology", "reducer", "outer", "delay", "inner_state")
"""Without which a state means something else."""


def fingerprint(rows: Sequence[Row]) -> str:
    """Of the tensors that are synchronised: names, shapes and dtypes."""
    return ",".join(row.layout.fingerprint().hex() for row in rows)


def check_saved(own: Any, expected: Mapping[str, Any], settings: Settings) -> None:
    """Refuses a state that is damaged, of another model, of other settings or of another rank.

    Args:
        own: that was saved.
        expected: what would be saved now.
        settings: of the `LocalSGD` at hand.
    """
    _check_whole(own, expected)
    if own["model"] != expected["model"]:
        raise UserError(
            "the state is of another model: names, shapes or dtypes of its parameters differ; "
            "make LocalSGD of the model that it was saved with"
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
            f"the state is of rank {own['rank']}, and what its levels and reducers remember is not "
            f"of rank {rank}; let each rank load what it has saved itself"
        )


def _check_whole(own: Any, expected: Mapping[str, Any]) -> None:
    """Refuses what lacks a part."""
    whole = isinstance(own, Mapping)
    missing = [key for key in expected if not whole or key not in own]
    if not missing:
        position = own["position"]
        kept = isinstance(position, Mapping) and set(expected["position"]) <= set(position)
        lengths = len(position["left"]) == len(position["lengths"]) if kept else False
        missing = [] if lengths else ["position"]
    if missing:
        raise UserError(
            f"the state has no {missing[0]!r}, without which it can't be gone on from; load what "
            "state_dict() of LocalSGD gave, whole"
        )


def _is_of_its_rank(levels: Sequence[Sequence[Any]]) -> bool:
    """Whether a reducer remembers anything, or a block's level, which other blocks do not share."""
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
