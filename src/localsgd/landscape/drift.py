"""The drift of workers between syncs, and the directions of their updates.

Letters: w workers, n scalars of a model.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from localsgd.errors import UserError


@dataclass(frozen=True)
class Drift:
    """Workers just before they synchronise. An update is anchor - worker.

    to_mean: each worker's distance to the mean of the workers; between: mean distance of two
    workers; updates: each update's length; mean_update: the length of their mean;
    cosine: mean cosine of two workers' updates (None for one worker, or an update of 0);
    alignment: ||mean update||^2 / mean ||update||^2: 1 when all are equal, 1/w when orthogonal.
    """

    to_mean: tuple[float, ...]
    between: float
    updates: tuple[float, ...]
    mean_update: float
    cosine: float | None
    alignment: float | None

    def record(self, **extra: Any) -> dict[str, Any]:
        return {"kind": "drift", **asdict(self), **extra}


def drift(rows: Tensor, anchor: Tensor) -> Drift:
    """The drift of workers' rows [w, n] from the anchor [n] they last averaged to."""
    if rows.ndim != 2 or anchor.shape != rows.shape[1:]:
        raise UserError(
            f"workers of shape {list(rows.shape)} and an anchor of shape {list(anchor.shape)} do "
            "not fit; give [workers, n] and [n]"
        )
    updates = anchor - rows
    mean = updates.mean(0)
    lengths = updates.norm(dim=1)
    squares = float(lengths.square().mean())
    return Drift(
        to_mean=tuple((updates - mean).norm(dim=1).tolist()),
        between=_mean_distance(rows),
        updates=tuple(lengths.tolist()),
        mean_update=float(mean.norm()),
        cosine=_mean_cosine(updates, lengths),
        alignment=float(mean.square().sum()) / squares if squares > 0 else None,
    )


class DriftHistory:
    """Drift round by round, with the cosine between this round's mean update and the last one's.

    history = DriftHistory()
    record = history.observe(rows, anchor, step=steps_done)   # before every sync
    """

    def __init__(self) -> None:
        self._last: Tensor | None = None

    def observe(self, rows: Tensor, anchor: Tensor, *, step: int) -> dict[str, Any]:
        """A record of rows [w, n] against their anchor [n]; `between_rounds` is None at first."""
        measured = drift(rows, anchor)
        mean = anchor - rows.mean(0)
        cosine = None if self._last is None else cosine_of(mean, self._last)
        self._last = mean.clone()
        return measured.record(step=step, between_rounds=cosine)


def cosine_of(a: Tensor, b: Tensor) -> float | None:
    """The cosine of two vectors, None if one is 0."""
    lengths = float(a.norm()) * float(b.norm())
    return float(a @ b) / lengths if lengths > 0 else None


def _mean_distance(rows: Tensor) -> float:
    return float(torch.pdist(rows).mean()) if rows.shape[0] > 1 else 0.0


def _mean_cosine(updates: Tensor, lengths: Tensor) -> float | None:
    w = updates.shape[0]
    if w < 2 or bool((lengths == 0).any()):
        return None
    cosines = (updates @ updates.T) / torch.outer(lengths, lengths)
    return float((cosines.sum() - cosines.diagonal().sum()) / (w * (w - 1)))
