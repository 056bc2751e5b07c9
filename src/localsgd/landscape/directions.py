"""Random directions scaled filter by filter, shared by the models that are compared.

Letters: n chosen scalars.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.landscape.operator import seeded
from localsgd.landscape.parameters import Layout


def filter_normalised(raw: Tensor, weights: Tensor, layout: Layout) -> Tensor:
    """d_f <- d_f ||w_f|| / ||d_f|| for each filter f; 0 for biases and batch-norm parameters.

    Filters are slices of the first dimension (Li et al. 2018, section 4). Vectors [n].
    """
    parts = []
    for (name, d), (_, w) in zip(layout.filters(raw), layout.filters(weights), strict=True):
        shape = layout.shapes[layout.names.index(name)]
        if len(shape) <= 1:
            parts.append(torch.zeros_like(d))
        else:
            norms = d.norm(dim=1, keepdim=True).clamp(min=torch.finfo(d.dtype).tiny)
            parts.append(d * (w.norm(dim=1, keepdim=True) / norms))
    return layout.flat(parts)


def shared_directions(
    weights: Sequence[Tensor], layout: Layout, count: int = 10, *, seed: int = 0
) -> list[list[Tensor]]:
    """`count` directions for each of several models: the same Gaussians, each model's own filters.

    weights: one vector [n] a model, of one layout. Returns a list by model of lists by
    direction, each [n].
    """
    if count < 1:
        raise UserError(f"{count} directions were asked for; ask for 1 or more")
    raws = [raw_direction(layout.n, seed, index) for index in range(count)]
    return [[filter_normalised(raw.to(w), w, layout) for raw in raws] for w in weights]


def raw_direction(n: int, seed: int, index: int) -> Tensor:
    """Gaussian direction number `index` of a seed: float64 [n], however many are drawn."""
    return torch.randn(n, generator=seeded(seed * 1_000_003 + index), dtype=torch.float64)


def filter_norms(weights: Tensor, layout: Layout) -> Tensor:
    """For each scalar the norm of its filter, [n]; vectors (biases, batch norm) are one filter."""
    parts = [w.norm(dim=1, keepdim=True).expand_as(w) for _, w in layout.filters(weights)]
    return layout.flat(parts)
