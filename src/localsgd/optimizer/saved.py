"""Checks that a saved state can be loaded, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from localsgd.errors import UserError
from localsgd.optimizer.consistency import digest_of_text
from localsgd.optimizer.settings import Settings
from localsgd.optimizer.start import layouts_of
from localsgd.optimizer.wrapping import KEY
from localsgd.rows.model_rows import Row
from localsgd.saving.tree import check_kinds
from localsgd.schedule.rounds import Position
from localsgd.schedule.signals import FirstDecay
from localsgd.wire.metered import Entry

SETTINGS = ("topology", "reducer", "outer", "delay", "inner_state")
"""Settings that must be the same when a state is loaded."""


KIND, GROUPS = "inner optimizer", "parameter groups"
"""What is saved of the inner optimizer beside its own state."""


def fingerprint(rows: Sequence[Row]) -> str:
    """A fingerprint of the synchronised tensors: their names, shapes and dtypes."""
    return layouts_of(rows)


def check_saved(
    state: Mapping[str, Any], expected: Mapping[str, Any], settings: Settings, peers: Sequence[int]
) -> None:
    """Refuses a state that is damaged, of another model, of other settings or of another rank.

    Args:
        state: that was saved, with the inner optimizer's.
        expected: the part of `LocalSGD` that would be saved now.
        settings: the settings of the `LocalSGD` that loads it.
        peers: the ranks that hold the same part of the model, which is all of it but for workers of
            several ranks.
    """
    own = state[KEY]
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
                + (", or use localsgd.save() and load()" if what == "topology" else "")
            )
    check_inner(own["made_with"], expected["made_with"])
    _check_kinds(own, expected)
    rank, saver = expected["rank"], own["rank"]
    if saver != rank and (why := _why_not_of_all(state, settings, saver in peers)):
        raise UserError(
            f"the state is of rank {saver}, and {why}, which rank {rank} can't take over; let each "
            "rank load the state that it saved itself, or call localsgd.save() and load() on all"
        )


def described(inner: Optimizer, rows: Sequence[Row]) -> dict[str, str]:
    """What must be the same of the inner optimizer, by name; settings such as its rate need not."""
    names = {
        id(parameter): slot.name
        for row in rows
        for slot, parameter in zip(row.layout.slots, row.parameters, strict=True)
    }
    groups = [[names.get(id(p), "frozen") for p in group["params"]] for group in inner.param_groups]
    return {KIND: type(inner).__qualname__, GROUPS: digest_of_text(repr(groups)).hex()}


def check_inner(saved: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuses the state of another kind of inner optimizer, or of other groups.

    Args:
        saved, now: what states were made with; older ones don't say it.
    """
    if saved.get(KIND, now[KIND]) != now[KIND]:
        raise UserError(
            f"the state is of the inner optimizer {saved[KIND]}, and this one is {now[KIND]}, "
            "which goes on from another state; make the same, or begin anew from the averaged model"
        )
    if saved.get(GROUPS, now[GROUPS]) != now[GROUPS]:
        raise UserError(
            "the inner optimizer's groups have other parameters than when the state was saved, or "
            "the same in another order, so that momenta would go to the wrong ones; make the same "
            "groups in the same order"
        )


def _why_not_of_all(state: Mapping[str, Any], settings: Settings, peer: bool) -> str:
    """What a state has that is its rank's alone, in words; nothing if it is the same on all ranks.

    Args:
        peer: whether the rank that saved it holds the same part of the model.
    """
    own = state[KEY]
    if not peer:
        return "its part of the model is another one than here"
    if _is_of_its_rank(own["levels"]):
        return "its levels and reducers have memory of that rank alone"
    whole = settings.delay.none or own["finished_at"] == own["steps"]
    if not whole or Position(**own["position"]).averaged < settings.levels:
        return "it was saved between two syncs, when each rank had weights of its own"
    shared = settings.exact == settings.levels and own["made_with"]["average"] != "models"
    if own["lockstep"] == settings.levels or (
        shared and all(count == own["steps"] for count in own["syncs"])
    ):
        return ""  # Gradients were averaged in every step, so that momenta are equal.
    names = {
        name: None
        for values in state["state"].values()
        for name, value in values.items()
        if name != "step" and not _is_alike(value) and not _is_averaged(name, own, settings)
    }
    if not names:
        return ""
    return (
        f"its momenta ({', '.join(names)}) are that rank's alone (to begin with none, on purpose, "
        'load {**state, "state": {}})'
    )


def _is_alike(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _is_averaged(name: str, own: Mapping[str, Any], settings: Settings) -> bool:
    """Whether every sync, but for that of `finish()`, makes this key of the state equal."""
    rules = settings.inner_state
    rule = rules.get(name, rules.get("all"))
    made_equal = rule is not None and rule.action != "keep" and rule.period == 1
    return made_equal and own["finished_at"] < own["steps"]


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


def _check_kinds(own: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises, as loading would, for values of other kinds than those of the state now."""
    check_kinds(own, expected, KEY)
    position, now = own["position"], expected["position"]
    if any(len(position[name]) != len(now[name]) for name in ("lengths", "left", "memories")):
        raise ValueError("its position is of another number of levels")
    counts = [own[name] for name in ("steps", "finished_at", "lockstep", "model_syncs")]
    counts += [position["lockstep"], position["depth"], *position["lengths"], *position["left"]]
    for count in counts:
        if type(count) is not int or count < -1:
            raise ValueError(f"{count!r} is no number of steps or syncs")
    Position(**position)
    FirstDecay(**own["signals"]["decay"])
    for entry, _ in zip(own["ledger"], expected["ledger"], strict=True):
        Entry(**entry)
    for row, row_now in zip(own["levels"], expected["levels"], strict=True):
        for level, level_now in zip(row, row_now, strict=True):
            _check_keys(level, level_now)
            for name, fragment in level_now.get("fragments", {}).items():
                _check_keys(level["fragments"][name], fragment)


def _check_keys(level: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if missing := [name for name in now if name not in level]:
        raise ValueError(f"a level has no {missing[0]}")


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
