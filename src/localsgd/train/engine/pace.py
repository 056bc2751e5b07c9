"""Workers with different numbers of local steps in a round, and the weights of their updates.

Shapes: K workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from localsgd.errors import UserError

Weighting = Literal["equal", "samples", "fednova"]


@dataclass(frozen=True)
class Pace:
    """The number of steps that each worker takes while the fastest takes H.

        τ_k = max(1, floor(r_k H))

    A worker that has taken its steps waits for the sync. In a round of one step all take it.

    Args:
        speeds: r_k of all K workers, relative to the fastest, in (0, 1].
    """

    speeds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(0 < speed <= 1 for speed in self.speeds):
            raise UserError(
                f"speeds {', '.join(f'{s:g}' for s in self.speeds)} are not all in (0, 1]; "
                "the fastest worker has 1, one that is half as fast 0.5"
            )

    def steps(self, length: int) -> list[int]:
        """The steps τ_k of all workers in a round of `length`."""
        return [self._steps(worker, length) for worker in range(len(self.speeds))]

    def active(self, worker: int, done: int, length: int) -> bool:
        """Whether `worker` takes another local step after `done` steps of a round of `length`."""
        return done < self._steps(worker, length)

    def _steps(self, worker: int, length: int) -> int:
        return max(1, math.floor(self.speeds[worker] * length + 1e-9))


def slowed(factors: tuple[float, ...]) -> Pace:
    """The pace of workers whose steps take `factors[k]` times as long."""
    if not factors or not all(math.isfinite(f) and f > 0 for f in factors):
        raise UserError(f"slowdowns {factors} are out of range; give numbers > 0 for all workers")
    fastest = min(factors)
    return Pace(tuple(fastest / factor for factor in factors))


def weights_of(
    weighting: Weighting, samples: Tensor, steps: list[int], dtype: torch.dtype
) -> Tensor:
    """The weight of each worker's update in the mean, `[K]`.

        equal: 1/K      samples: p_k = n_k / N      fednova: p_k τ / τ_k with τ = sum_k p_k τ_k

    FedNova (Wang et al. 2020, Eq. 7 for plain SGD) normalises updates by their numbers of steps, so
    that a worker does not count for more because it is faster or has more data; its weights do not
    sum to 1.

    Args:
        samples: n_k `[K]`, of each worker's data.
        steps: τ_k.
    """
    share = samples.double() / samples.sum()
    if weighting == "equal":
        share = torch.full_like(share, 1 / len(share))
    if weighting == "fednova":
        taken = torch.tensor(steps, dtype=torch.float64)
        share = share * (share * taken).sum() / taken
    return share.to(dtype)
