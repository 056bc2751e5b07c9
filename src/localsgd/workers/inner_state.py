"""What happens to the inner optimizers' state when workers agree: kept, averaged or reset.

    keep: nothing (Lin et al. 2020)     average: s_k <- mean_j s_j     reset: s_k <- 0

Each key of a state has a rule of its own, and a period, counted in agreements of the outermost
level: averaging everything at all of them is Local Adam (Cheng and Glasgow 2025, and PyTorch's
averagers do not), periods of their own are DES-LOC (Iacob et al. 2025).

Shapes: w workers hosted here · s scalars of a state tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from localsgd.collective import Collective
from localsgd.errors import UserError
from localsgd.reduce import ExactMean, Reducer

RULES = ("keep", "average", "reset")


@dataclass(frozen=True)
class Rule:
    """What becomes of one key of the state.

    Args:
        action: keep, average or reset.
        period: at every so-many-th agreement.
    """

    action: str
    period: int = 1

    @staticmethod
    def parse(text: str) -> Rule:
        """`average`, `reset`, `keep`, with `:PERIOD` where it is not 1."""
        action, _, period = text.partition(":")
        if action not in RULES or (period and not (period.isdecimal() and int(period))):
            raise UserError(
                f"inner state rule {text!r} is not understood; write keep, average, reset, or "
                "average:4 for every fourth agreement"
            )
        return Rule(action, int(period or 1))


def rules_of(text: str) -> dict[str, Rule]:
    """`exp_avg=average,exp_avg_sq=average:4`; `all=reset` is for every key that is not named."""
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
    """Refuses keys that the state of such an optimizer will not have, by a step of one scalar."""
    scalar = torch.nn.Parameter(torch.ones(1))
    scalar.grad = torch.ones(1)
    optimizer = make([{"params": [scalar], "weight_decay": 0.0}])
    optimizer.step()
    _refuse(rules, set(optimizer.state[scalar]))


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
        optimizers: of these workers, alike in their groups.
        rules: by key of the state; `all` for those that are not named.
        world: joins all workers.
        mean: of what is averaged.
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
        self._checked = False

    @torch.no_grad()
    def agree(self, agreements: int) -> None:
        """Does what is due after that many agreements."""
        if not self._rules:
            return
        self._check()
        for states in self._states():
            for key in states[0]:
                rule = self._rule(key)
                value = states[0][key]
                if rule is None or agreements % rule.period or not _has_values(value):
                    continue
                tensors = [state[key] for state in states]
                if rule.action == "reset":
                    for tensor in tensors:
                        tensor.zero_()
                else:
                    self._average(tensors)

    def _rule(self, key: str) -> Rule | None:
        return self._rules.get(key, None if key in self._named else self._rules.get("all"))

    def _average(self, tensors: list[Tensor]) -> None:
        stacked = torch.stack([tensor.flatten() for tensor in tensors]).unsqueeze(0)  # [1, w, s]
        mean = self._mean.reduce(stacked, None, self._world).wait()[0]
        for tensor in tensors:
            tensor.copy_(mean.view_as(tensor))

    def _states(self) -> list[list[dict[str, Any]]]:
        """For each parameter its state in every hosted worker's optimizer."""
        by_worker = [
            [optimizer.state[p] for group in optimizer.param_groups for p in group["params"]]
            for optimizer in self._optimizers
        ]
        return [list(states) for states in zip(*by_worker, strict=True) if states[0]]

    def _check(self) -> None:
        """Refuses keys that no optimizer has, once there is a state."""
        if self._checked:
            return
        _refuse(self._rules, {key for states in self._states() for key in states[0]})
        self._checked = True


def _has_values(value: Any) -> bool:
    """Whether it is more than a counter of steps."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 0
