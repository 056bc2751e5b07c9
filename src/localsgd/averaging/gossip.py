"""A level whose members average with neighbours, and not with all.

    w_k <- sum_j W_kj w_j        W = (1 - c_1 - c_2 - ...) I + c_1 P_1 + c_2 P_2 + ...

Each P is a permutation of the members, by which each sends its model to one other and gets one; c
is its share. Rows and columns of W add up to 1, so the mean of all members stays where it is, and
they come together as W's other eigenvalues are smaller than 1. There is no anchor, since no two
members need be equal. At the end of a run all take their mean.

`RING` is D-PSGD on a ring (Lian et al. 2017); `Pairs` averages pairs that are drawn anew at every
sync (Boyd et al. 2006; the pairs of NoLoCo, Kolehmainen et al. 2025, without its outer momentum).

Shapes: g groups · m members of each hosted here · M members of each · n scalars of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import torch
from torch import Tensor

from localsgd.basics.seeds import generator_for
from localsgd.reduce import ExactMean, Reducer
from localsgd.reduce.compressor import scale_dtype
from localsgd.wire import Collective, Sending

Send: TypeAlias = tuple[float, tuple[int, ...]]
"""A share c, and for each member the one that it sends its model to."""


class Mixing(Protocol):
    """Who averages with whom. `repr` must tell its settings."""

    def __call__(self, sync: int, members: int) -> Sequence[Send]:
        """The sends of a sync, counted from 0, among M members; equal on all processes."""
        ...


@dataclass(frozen=True)
class Ring:
    """A third each of oneself, the next and the one before: W_kk = W_k,k±1 = 1/3; of two, a half.

    Examples:
        >>> Ring()(0, 2)
        [(0.5, (1, 0))]
    """

    def __call__(self, sync: int, members: int) -> Sequence[Send]:
        around = {tuple((k + way) % members for k in range(members)) for way in (1, -1)}
        return [(1 / (1 + len(around)), to) for to in sorted(around) if members > 1]


@dataclass(frozen=True)
class Pairs:
    """A half each of oneself and a partner; an odd number leaves one alone, another each time.

    Args:
        seed: of the draws.
    """

    seed: int = 0

    def __call__(self, sync: int, members: int) -> Sequence[Send]:
        draw = generator_for(self.seed, "pairs", sync)
        order = torch.randperm(members, generator=draw, device="cpu").tolist()
        to = list(range(members))
        for one, other in zip(order[::2], order[1::2], strict=False):
            to[one], to[other] = other, one
        return [(0.5, tuple(to))] if members > 1 else []


RING = Ring()


class Gossip:
    """Groups whose members average with neighbours, in place.

    Args:
        members: `[g, m, n]`, views of the rows that are averaged.
        collective: joins them with those hosted elsewhere.
        mixing: who averages with whom.
        mean: of all members, at the end of the run.
    """

    def __init__(
        self,
        members: Tensor,
        collective: Collective,
        mixing: Mixing,
        mean: Reducer | None = None,
    ) -> None:
        self.members = members
        self.collective = collective
        self.mixing = mixing
        self.mean: Reducer = mean or ExactMean()
        self.syncs = 0
        self._turn = 0
        self.may_differ = False

    @property
    def anchor(self) -> Tensor:
        """The first hosted member of each group, `[g, n]`, in the place of an anchor."""
        return self.members[:, 0]

    @property
    def remembers(self) -> bool:
        return True

    def average(self) -> None:
        """w_k <- sum_j W_kj w_j."""
        wire = cast(Sending, self.collective)
        sends = self.mixing(self._turn, wire.members)
        under_way = [(share, wire.send(self.members, to)) for share, to in sends]
        received = [(share, pending.wait()) for share, pending in under_way]
        # Half precision is mixed in float32 and rounded once.
        mixed = self.members.to(scale_dtype(self.members.dtype), copy=True)
        mixed *= 1 - sum(share for share, _ in sends)
        for share, others in received:
            mixed.add_(others, alpha=share)
        self.members.copy_(mixed)
        self._turn += 1
        self.syncs += 1
        self.may_differ = wire.members > 1

    def share(self) -> None:
        """Nothing: each member has a model of its own."""

    def final_average(self) -> None:
        """w_k <- mean_j w_j."""
        mean = self.mean.reduce(self.members, None, self.collective).wait().clone()
        self.members.copy_(mean.unsqueeze(1).expand_as(self.members))
        self.syncs += 1
        self.may_differ = False

    def catch_up(self) -> None:
        """The members hold equal models."""
        self.may_differ = False

    def begin_round(self, learning_rate: float) -> None:
        """Nothing goes by the learning rate."""

    def state(self) -> dict[str, Any]:
        """The state to save, like `Level.state`."""
        return {"reducer": {}, "turn": self._turn, "may_differ": self.may_differ}

    def load(self, state: dict[str, Any]) -> None:
        self._turn, self.may_differ = state["turn"], state["may_differ"]
