"""Training that was saved by K workers goes on with another number of them.

    weights        the averaged model, for every worker; a new round begins
    momenta        the mean of the workers that have them, or none ("reset")
    error memory   e' <- 1/K sum_k e_k + o, for every worker; o is what chunks' owners remembered

So 1/K' sum e' is what 1/K sum e and o were: what is still to enter the anchor stays. The state of
the outermost level's outer optimizer is one for all, and stays; those of levels inside begin anew.
Means on their way are dropped; they would have moved workers to where their mean is already. Memory
of several levels is dropped; so is all outer state if there are more or fewer levels than before.

Shapes: n scalars of a row, which is padded by the number of workers.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.optimizer.wrapping import KEY
from localsgd.reduce.compressor import scale_dtype

Momenta = Literal["average", "reset"]

KNOWN = {"feedback", "syncs", "error", "owner_error", "place", "q"}
"""What reducers of this library remember."""

State = dict[str, Any]


class Regrouped:
    """Gathers the states of all K workers that were saved, one after the other.

    Args:
        momenta: what becomes of the inner optimizer's state.
        rows: whether rows have the same shards as then; else what is kept of them is dropped.
    """

    def __init__(self, momenta: Momenta, rows: bool = True) -> None:
        self._rows = rows
        if momenta not in ("average", "reset"):
            raise UserError(f'momenta={momenta!r} is unknown; there are "average" and "reset"')
        self._inner = InnerMean() if momenta == "average" else None
        self._first: State = {}
        self._memory: list[list[dict[str, Tensor]]] = []  # of each row and part, sums by name
        self._workers = 0
        self._squares = 0.0  # of all error memory
        self._keeps = {"memory": False, "outer": False}

    def add(self, state: State) -> None:
        """Takes in a worker's `state_dict()`; worker 0 comes first."""
        own = state[KEY]
        if not self._workers:
            self._first = copy.deepcopy(state)
        if self._inner is not None:
            self._inner.add(state["state"])
        self._workers += 1
        self._squares += _squares(own["levels"])
        if not self._rows or any(len(levels) > 1 for levels in own["levels"]):
            return
        memories = [_memories(levels[0]) for levels in own["levels"]]
        if not self._memory:
            self._memory = [[{} for _ in parts] for parts in memories]
        for sums, parts in zip(self._memory, memories, strict=True):
            for total, part in zip(sums, parts, strict=True):
                for name, tensor in part.items():
                    total[name] = total[name] + tensor if name in total else tensor.clone()

    def state(self, now: State) -> State:
        """A state that one of K' workers can load.

        Args:
            now: `state_dict()` of its optimizer, which has not trained yet.
        """
        own, first = copy.deepcopy(now[KEY]), self._first[KEY]
        for name in ("steps", "lockstep", "model_syncs", "inner_state_keys", "signals", "told"):
            own[name] = first[name]
        position, before = own["position"], first["position"]
        count = len(position["lengths"])
        alike = count == len(before["lengths"])
        kept = alike and self._rows
        self._keeps = {"outer": kept, "memory": kept and count == 1}
        if alike:
            _check_settings(first["made_with"], own["made_with"])
            position |= {name: before[name] for name in ("lengths", "memories", "lockstep")}
            own["ledger"] = first["ledger"]
        else:
            position["lockstep"] = 0
        position |= {"left": [0] * count, "depth": 0}
        for row, levels in enumerate(own["levels"]):
            saved = first["levels"][row][-1]
            if self._keeps["outer"]:
                _put_outer(_parts(levels[-1]), _parts(saved))
            if self._keeps["memory"]:
                _put_memory(levels[0], saved, self._memory[row], self._workers)
        inner = {} if self._inner is None else self._inner.mean()
        groups = self._first["param_groups"]
        return {"state": inner, "param_groups": groups, KEY: own}

    @property
    def said(self) -> str:
        """What became of the parts, for a log."""
        inner = "reset" if self._inner is None else f"the mean over the {self._workers}"
        outer = "as it was" if self._keeps["outer"] else "reset"
        if self._keeps["outer"] and not self._keeps["memory"]:
            outer = "the outermost level's as it was, others reset"
        said = f"momenta: {inner}; outer optimizer, if any: {outer}"
        if self._squares and self._keeps["memory"]:
            said += f"; error memory: the mean over the {self._workers}, so that none is lost"
        elif self._squares:
            said += f"; error memory: dropped (norm {math.sqrt(self._squares):.3g})"
        return said


class InnerMean:
    """The mean of inner optimizers' states, over the workers that have them."""

    def __init__(self) -> None:
        self._found: dict[Any, dict[str, list[Any]]] = {}

    def add(self, state: Mapping[Any, Mapping[str, Any]]) -> None:
        for parameter, values in state.items():
            found = self._found.setdefault(parameter, {})
            shaped = any(isinstance(v, Tensor) and v.dim() for v in values.values())
            for name, value in values.items():
                _add(found, name, value, counts=name == "step" or (shaped and _is_scalar(value)))

    def mean(self) -> dict[Any, dict[str, Any]]:
        return {
            parameter: {
                name: (value / count).to(dtype) if dtype is not None else value
                for name, (value, count, dtype) in found.items()
            }
            for parameter, found in self._found.items()
        }


def _add(found: dict[str, list[Any]], name: str, value: Any, counts: bool) -> None:
    """Adds to `[sum, count, dtype]`; counters become the largest, and other values must agree."""
    before = found.get(name)
    if not counts and isinstance(value, Tensor) and value.is_floating_point():
        wide = value.to(scale_dtype(value.dtype))
        count = 0 if before is None else before[1]
        found[name] = [wide if before is None else before[0] + wide, count + 1, value.dtype]
    elif before is None:
        found[name] = [value, 1, None]
    elif counts:
        before[0] = max(before[0], value)
    elif not _same(before[0], value):
        raise UserError(
            f"the inner optimizer's {name!r} differs between workers and can't be averaged; "
            'let it begin anew by momenta="reset"'
        )


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.equal(first, second)
    if isinstance(first, list | tuple) and type(first) is type(second):
        return len(first) == len(second) and all(map(_same, first, second))
    return type(first) is type(second) and bool(first == second)


def _is_scalar(value: Any) -> bool:
    return value.dim() == 0 if isinstance(value, Tensor) else isinstance(value, int | float)


def _check_settings(saved: Mapping[str, str], now: Mapping[str, str]) -> None:
    for what in ("reducer", "outer", "delay", "inner_state"):
        # An outer optimizer's numbers may follow from the number of workers.
        before, after = (
            re.sub(r"[\d.]+", "", each[what]) if what == "outer" else each[what]
            for each in (saved, now)
        )
        if before != after:
            raise UserError(
                f"the state was saved with {what} {saved[what]}, and this LocalSGD has "
                f"{now[what]}; make it with the same, or begin anew from the averaged model"
            )


def _parts(level: State) -> list[State]:
    """The states of a level's fragments, or the level's own."""
    return list(level["fragments"].values()) if "fragments" in level else [level]


def _put_outer(parts: Sequence[State], saved: Sequence[State]) -> None:
    """The outer optimizer's state, cut as fragments are cut now."""
    if not parts or not all("outer" in part for part in (*parts, *saved)):
        return
    lengths = [part["anchor"].shape[-1] for part in parts]
    for name, value in saved[0]["outer"].items():
        if isinstance(value, Tensor) and value.dim() > 1:
            whole = torch.cat([part["outer"][name] for part in saved], -1)
            cut: Sequence[Any] = _resized(whole, sum(lengths)).split(lengths, -1)
        else:
            cut = [part["outer"][name] for part in saved]
        for part, own in zip(parts, cut, strict=True):
            part["outer"][name] = own
    for part, before in zip(parts, saved, strict=True):
        part["learning_rate"] = before["learning_rate"]


def _reducers(level: State) -> list[State]:
    """The states of the reducers of a level's fragments, or of its own one."""
    if "fragments" not in level:
        return [level["reducer"]]
    return [level["reducer"][name] for name in level["fragments"]]


def _memories(level: State) -> list[dict[str, Tensor]]:
    """What each reducer of a level of one worker still owes: `error [1, 1, n]`, `owed [n]`."""
    found = []
    for own in _reducers(level) if "reducer" in level else []:
        if not own.keys() <= KNOWN:
            raise UserError(
                f"a reducer's memory ({', '.join(sorted(own.keys() - KNOWN))}) can't be taken to "
                "another number of workers; begin anew from the averaged model"
            )
        kept = {}
        if "error" in own:
            kept["error"] = own["error"]
        if "owner_error" in own and "error" in own:
            chunk, n = own["owner_error"][0, 0], own["error"].shape[-1]
            start = min(n, int(own["place"][0, 0]) * len(chunk))
            kept["owed"] = own["error"].new_zeros(n)
            kept["owed"][start : start + len(chunk)] = chunk[: n - start]
        found.append(kept)
    return found


def _put_memory(
    level: State, saved: State, sums: Sequence[dict[str, Tensor]], workers: int
) -> None:
    """The mean of all memories, cut as fragments are cut now."""
    own, before = _reducers(level), _reducers(saved)
    for new, old in zip(own, before, strict=True):
        new |= {name: old[name] for name in ("syncs", "q") if name in old}
    if not all("error" in total for total in sums):
        return
    whole = torch.cat([t["error"] / workers + t.get("owed", 0) for t in sums], -1)
    lengths = [part["anchor"].shape[-1] for part in _parts(level)]
    for new, cut in zip(own, _resized(whole, sum(lengths)).split(lengths, -1), strict=True):
        new["error"] = cut.clone()


def _resized(row: Tensor, length: int) -> Tensor:
    """A row `[..., n]` with another padding at its end."""
    if length <= row.shape[-1]:
        return row[..., :length]
    return torch.nn.functional.pad(row, (0, length - row.shape[-1]))


def _squares(levels: Sequence[Any]) -> float:
    """The sum of squares of all error memory in a state."""
    if isinstance(levels, Mapping):
        named = ("error", "owner_error")
        own = [v for k, v in levels.items() if k in named and isinstance(v, Tensor)]
        rest = [v for k, v in levels.items() if k not in named]
        return sum(float(v.double().square().sum()) for v in own) + sum(map(_squares, rest))
    if isinstance(levels, list | tuple):
        return sum(map(_squares, levels))
    return 0.0
