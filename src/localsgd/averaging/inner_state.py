"""What happens to the inner optimizers' state when workers average: it is kept, averaged or reset.

    keep: nothing (Lin et al. 2020)     average: s_k <- mean_j s_j     reset: s_k as new

Each key of a state has its own rule and period, counted in syncs of the outermost level. Averaging
everything at every sync is Local Adam (Cheng and Glasgow 2025; PyTorch's averagers do not do it),
different periods are DES-LOC (Iacob et al. 2025).

A worker may lack the state of a parameter that it has not trained yet. The mean is over the workers
that have one, and only they get it. The others create theirs at their first gradient, as they would
alone. So no optimizer has half a state, and the sum of momenta over all workers stays.

A reset of all keys of a parameter's state, except those that count steps, makes the state new with
its counters, so that bias corrections begin again. A reset of some keys sets them to 0 and leaves
counters, which belong to the other keys too, unless they are named.

Shapes: w workers hosted here · K workers in all · p parameters · s scalars of a state tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.reduce import ExactMean, Reducer
from localsgd.reduce.compressor import scale_dtype
from localsgd.rows.shards import local
from localsgd.wire import Collective

RULES = ("keep", "average", "reset")

PACK = 1 << 23
"""Most scalars that are averaged at once, if there are several tensors."""

Parameters: TypeAlias = Sequence[tuple[Tensor, list[dict[str, Any]]]]
"""Each parameter of the first worker, with its state in every hosted worker's optimizer, or {}."""


@dataclass(frozen=True)
class Rule:
    """What happens to one key of the state.

    Args:
        action: keep, average or reset.
        period: syncs from one action to the next.
    """

    action: str
    period: int = 1

    @staticmethod
    def parse(text: str) -> Rule:
        """Reads `average`, `reset` or `keep`, with `:PERIOD` if it is not 1."""
        action, _, period = text.partition(":")
        if action not in RULES or (period and not (period.isdecimal() and int(period))):
            raise UserError(
                f"inner state rule {text!r} is not understood; write keep, average, reset, or "
                "average:4 for every fourth sync"
            )
        return Rule(action, int(period or 1))


def rules_of(text: str) -> dict[str, Rule]:
    """Reads `exp_avg=average,exp_avg_sq=average:4`; `all=reset` is for all keys not named."""
    rules = {}
    for part in filter(None, text.split(",")):
        key, equals, rule = part.strip().partition("=")
        if not equals or not key:
            raise UserError(
                f"inner state {part!r} is not understood; write KEY=RULE, such as "
                "momentum_buffer=reset or exp_avg_sq=average:4"
            )
        rules[key] = Rule.parse(rule)
    return rules


def check_keys(
    rules: Mapping[str, Rule], make: Callable[[list[dict[str, Any]]], Optimizer]
) -> None:
    """Raises for keys that such an optimizer's state won't have; it makes a step of one scalar."""
    _refuse(rules, _keys(make))


def averaged_rules(
    rules: Mapping[str, Rule], make: Callable[[list[dict[str, Any]]], Optimizer]
) -> list[Rule]:
    """The rules that average, one for each key of the state that is as long as a row."""
    keys = _keys(make) - {"step"}
    found = [rules.get(key, rules.get("all")) for key in sorted(keys)]
    return [rule for rule in found if rule is not None and rule.action == "average"]


def _keys(make: Callable[[list[dict[str, Any]]], Optimizer]) -> set[str]:
    scalar = torch.nn.Parameter(torch.ones(1))
    scalar.grad = torch.ones(1)
    optimizer = make([{"params": [scalar], "weight_decay": 0.0}])
    optimizer.step()
    return set(optimizer.state[scalar])


def _refuse(rules: Mapping[str, Rule], keys: Collection[str]) -> None:
    wanted = {key for key, rule in rules.items() if rule.action != "keep"}
    missing = sorted(wanted - set(keys) - {"all"})
    if missing:
        raise UserError(
            f"the inner optimizer's state has no {missing[0]!r}; it has "
            f"{', '.join(sorted(keys)) or 'nothing'}"
        )


class InnerStates:
    """Applies rules to the states of the workers hosted here.

    Args:
        optimizers: of these workers, with equal groups.
        rules: by key of the state; `all` for those that are not named.
        world: joins all workers.
        mean: the reducer for the state.

    Attributes:
        syncs: of the outermost level, on models, that states have followed.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        rules: Mapping[str, Rule],
        world: Collective,
        mean: Reducer | None = None,
    ) -> None:
        self._optimizers = optimizers
        self._rules = {key: rule for key, rule in rules.items() if rule.action != "keep"}
        self._named = set(rules)
        self._world = world
        self._mean = mean or ExactMean()
        self._keys: list[str] = []  # keys that any worker has had, equal on all processes
        self._checked = False
        self.syncs = 0
        self._ready_made = _ready_made(optimizers[0])

    def state(self) -> list[str]:
        """The keys that all workers know of, so that a resumed run makes the same calls."""
        return list(self._keys)

    def load(self, state: Sequence[str]) -> None:
        self._keys = list(state)
        self._check()

    def follow(self) -> None:
        """Models have been averaged at the outermost level."""
        if self._rules:
            self.syncs += 1
            self.average(self.syncs)

    @torch.no_grad()
    def average(self, syncs: int) -> None:
        """Averages and resets what is due after that many syncs."""
        due = {key: rule.action for key, rule in self._rules.items() if syncs % rule.period == 0}
        parameters = self._parameters()
        counters = _counters(parameters)
        if "average" in due.values() or (self._rules and not self._checked):
            self._average(parameters, counters, due)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter, {})
                    chosen = {key for key in state if self._action(key, due) == "reset"}
                    if chosen and self._is_all(chosen, state, counters):
                        state.clear()
                        if self._ready_made:
                            state.update(_like(optimizer, group, parameter).state[parameter])
                    else:
                        _set_to_first(state, chosen - (set(counters) - self._named))

    def _is_all(
        self, chosen: Collection[str], state: Collection[str], counters: Collection[str]
    ) -> bool:
        """Whether the other keys of the state are all counters that were not named."""
        left = set(state) - set(chosen)
        return left <= set(counters) - self._named

    def _action(self, key: str, due: Mapping[str, str]) -> str | None:
        return due.get(key, None if key in self._named else due.get("all"))

    def _parameters(self) -> Parameters:
        by_worker = [
            [
                (p, optimizer.state.get(p, {}))
                for group in optimizer.param_groups
                for p in group["params"]
            ]
            for optimizer in self._optimizers
        ]
        return [
            (pairs[0][0], [state for _, state in pairs]) for pairs in zip(*by_worker, strict=True)
        ]

    def _average(
        self, parameters: Parameters, counters: Collection[str], due: Mapping[str, str]
    ) -> None:
        keys, sizes = self._sizes(parameters, counters, due)
        self._check()
        alike: dict[tuple[bool, torch.dtype, torch.device], list[Piece]] = {}
        for (parameter, states), by_key in zip(parameters, sizes.unbind(1), strict=True):
            for key, by_worker in zip(keys, by_key.unbind(1), strict=True):
                have = [size for size in by_worker.tolist() if size]
                if not have:
                    continue
                _check_same_size(key, have)
                found = [local(state[key]) if key in state else None for state in states]
                own = [one if _scalars(key, one, counters) else None for one in found]
                dtype, device = scale_dtype(parameter.dtype), self._device
                everyone = len(have) == len(by_worker)
                if everyone and own[0] is not None:
                    dtype, device = own[0].dtype, own[0].device
                piece = Piece(own, have[0], len(have))
                alike.setdefault((everyone, dtype, device), []).append(piece)
        for (everyone, dtype, device), pieces in alike.items():
            for pack in _packs(pieces):
                self._average_pack(pack, everyone, dtype, device)

    def _average_pack(
        self, pack: Sequence[Piece], everyone: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Tensors of one kind, averaged at once.

        Args:
            everyone: whether all workers have them; those that don't get the weight 0.
        """
        sizes = [piece.size for piece in pack]
        rows = torch.zeros(len(pack[0].own), sum(sizes), dtype=dtype, device=device)  # [w, s]
        for worker, row in enumerate(rows):
            for piece, part in zip(pack, row.split(sizes), strict=True):
                tensor = piece.own[worker]
                if tensor is not None:
                    part.view(tensor.shape).copy_(tensor)
                    if not everyone:
                        part.mul_(1 / piece.count)
        weights = None if everyone else torch.ones(1, len(rows), dtype=dtype, device=device)
        mean = self._mean.reduce(rows.unsqueeze(0), weights, self._world).wait()[0]
        for piece, part in zip(pack, mean.split(sizes), strict=True):
            for tensor in piece.own:
                if tensor is not None:
                    tensor.copy_(part.view(tensor.shape))

    def _sizes(
        self, parameters: Parameters, counters: Collection[str], due: Mapping[str, str]
    ) -> tuple[list[str], Tensor]:
        """The keys to average, and how many scalars every worker has of them: `[K, p, keys]`.

        Numbers are gathered from all workers, so that all make the same calls afterwards. Keys that
        only some workers know are exchanged first.
        """
        by_worker = list(zip(*(states for _, states in parameters), strict=True))
        while True:
            keys = [key for key in self._keys if self._action(key, due) == "average"]
            names = [_names(states, self._keys) for states in by_worker]
            sizes = [
                [_scalars(key, state.get(key), counters) for state in states for key in keys]
                for states in by_worker
            ]
            numbers = [[len(new), *of_all] for new, of_all in zip(names, sizes, strict=True)]
            found = self._gathered(numbers, torch.int64)  # [K, 1 + p · keys]
            longest = int(found[:, 0].max())
            if not longest:
                return keys, found[:, 1:].reshape(len(found), len(parameters), len(keys))
            self._learn(names, longest)

    def _learn(self, names: Sequence[bytes], longest: int) -> None:
        padded = [list(new.ljust(longest, b"\n")) for new in names]
        rows = self._gathered(padded, torch.uint8).tolist()
        learnt = {key for row in rows for key in bytes(row).decode().split("\n") if key}
        self._keys = sorted({*self._keys, *learnt})

    def _gathered(self, rows: list[list[int]], dtype: torch.dtype) -> Tensor:
        """Gathers rows `[w, c]` of the hosted workers into those of all, `[K, c]`, on the CPU."""
        mine = torch.tensor([rows], dtype=dtype, device=self._device)
        return self._world.gather(mine).wait()[0].cpu()

    @property
    def _device(self) -> torch.device:
        return local(self._optimizers[0].param_groups[0]["params"][0]).device

    def _check(self) -> None:
        """Raises on all workers for keys that no optimizer has, once any has a state."""
        if self._keys and not self._checked:
            _refuse(self._rules, self._keys)
            self._checked = True


@dataclass(frozen=True)
class Piece:
    """One state tensor to average.

    Args:
        own: the tensor of each hosted worker, or None.
        size: its scalars.
        count: number of all workers that have it.
    """

    own: Sequence[Tensor | None]
    size: int
    count: int


def _packs(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Groups the pieces in order, so that the memory needed beside the states stays small."""
    pack: list[Piece] = []
    for piece in pieces:
        if pack and sum(one.size for one in pack) + piece.size > PACK:
            yield pack
            pack = []
        pack.append(piece)
    if pack:
        yield pack


def _check_same_size(key: str, sizes: Sequence[int]) -> None:
    if min(sizes) != max(sizes):
        raise UserError(
            f"the inner optimizer's {key!r} has {plural(min(sizes), 'scalar')} on some workers and "
            f"{max(sizes)} on others, and can't be averaged; give all the same optimizer"
        )


def _ready_made(optimizer: Optimizer) -> bool:
    """Whether such an optimizer has its state before its first step, as Adagrad does."""
    if not optimizer.state:
        return False
    scalar = torch.nn.Parameter(torch.zeros(1))
    try:
        return bool(_like(optimizer, optimizer.param_groups[0], scalar).state)
    except Exception:  # It takes more arguments than groups, so it can't be known.
        return False


def _like(optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> Optimizer:
    """A new optimizer of the same kind, for this parameter alone."""
    kind = type(optimizer)
    taken = inspect.signature(kind).parameters
    usual = {key: value for key, value in optimizer.defaults.items() if key in taken}
    options = {key: value for key, value in group.items() if key != "param_names"}
    return kind([{**options, "params": [parameter]}], **usual)


def _set_to_first(state: dict[str, Any], keys: Collection[str]) -> None:
    """Sets these keys to their values before the first step."""
    for key in keys:
        if isinstance(state[key], Tensor):
            local(state[key]).fill_(1 if key == "mu_product" else 0)


def _names(states: Sequence[Mapping[str, Any]], known: Collection[str]) -> bytes:
    """The keys of these states that are not in `known`, one per line."""
    return "\n".join(sorted({key for state in states for key in state} - set(known))).encode()


def _counters(parameters: Parameters) -> set[str]:
    """Keys of step counters: single numbers in the state of a parameter with dimensions."""
    return {"step"} | {
        key
        for parameter, states in parameters
        if parameter.dim() > 0
        for state in states
        for key, value in state.items()
        if isinstance(value, Tensor) and value.dim() == 0
    }


def _scalars(key: str, value: Any, counters: Collection[str]) -> int:
    """The number of scalars to average; 0 for counters."""
    if isinstance(value, Tensor) and value.is_floating_point() and key not in counters:
        return local(value).numel()
    return 0
