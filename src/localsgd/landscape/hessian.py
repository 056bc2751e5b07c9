"""Hessian-vector products of the loss over a whole data set.

H v = sum_b s_b H_b v / sum_b s_b over batches b of s_b samples, each H_b v by a second backward
pass through the gradient's graph (Pearlmutter 1994). The first passes do not depend on v: a graph
is built once a batch for any number of vectors, and kept between calls while memory allows, which
leaves 6 of 9 convolutions a product.

Letters: n chosen scalars, k vectors at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.landscape.batches import Batch
from localsgd.landscape.group import summed
from localsgd.landscape.objective import Objective, mean_of
from localsgd.landscape.operator import Operator

GRAPH_BYTES = 2 << 30


@dataclass(frozen=True)
class Linearised:
    """The gradient of one batch with its graph; `bytes` is what the graph holds."""

    index: int
    samples: int
    loss: Tensor
    gradients: tuple[Tensor, ...]
    leaves: tuple[Tensor, ...]
    bytes: int

    def product(self, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """H_b v for v in the leaves' shapes."""
        live = [(g, v) for g, v in zip(self.gradients, parts, strict=True) if g.requires_grad]
        if not live:  # the loss is linear in the weights
            return tuple(torch.zeros_like(leaf) for leaf in self.leaves)
        outputs, vectors = zip(*live, strict=True)
        return torch.autograd.grad(
            outputs, self.leaves, vectors, retain_graph=True, materialize_grads=True
        )


@final
class Hessian(Operator):
    """The Hessian [n, n] of an `Objective` at its weights, as an `Operator`.

    Args:
      objective: model, loss, data, chosen parameters, statistics and process group.
      graph_bytes: memory in which to keep batches' graphs between calls (each process); 0 keeps
        none. One batch's graph is needed in any case.
    """

    def __init__(self, objective: Objective, *, graph_bytes: int = GRAPH_BYTES):
        self.objective, self.graph_bytes = objective, graph_bytes
        self.like = objective.weights
        leaves = objective.layout.split(objective.weights)
        self._leaves = tuple(leaf.clone().requires_grad_() for leaf in leaves)
        self._kept: list[Linearised] = []
        self._losses: dict[int, float] = {}
        self._batches: int | None = None

    def apply(self, vectors: Tensor) -> Tensor:
        """[k, n] -> [k, n]; one pass over the data and one reduction for all k."""
        k, n = vectors.shape
        layout = self.objective.layout
        total = vectors.new_zeros(k * n + 3)  # the products, samples, loss, changed batches
        products = total[:-3].view(k, n)
        with torch.enable_grad(), self.objective.running():
            for batch in self._linearised():
                for row, vector in zip(products, vectors, strict=True):
                    parts = batch.product(layout.split(vector))
                    row.add_(layout.flat(parts), alpha=batch.samples)
                total[-3] += batch.samples
                total[-2] += batch.samples * batch.loss
                total[-1] += self._changed(batch)
        summed(total, self.objective.group)
        if total[-1] > 0:
            raise UserError(
                f"the data change from pass to pass ({int(total[-1])} batches have another loss); "
                "a product needs the same batches each time: no shuffling, no augmentation, "
                "or list(loader)"
            )
        return mean_of(total, tail=3).view(k, n)

    def _linearised(self) -> Iterator[Linearised]:
        yield from self._kept
        if self._batches is not None and len(self._kept) == self._batches:
            return
        seen = len(self._kept)
        for batch in self.objective.batches(skip=seen):
            linearised = self._linearise(batch)
            if self._batches is None and self._fits(linearised):
                self._kept.append(linearised)
            seen += 1
            yield linearised
        self._batches = seen

    def _fits(self, new: Linearised) -> bool:
        # Kept ones are the first of the data, so that later passes can skip them.
        held = sum(one.bytes for one in self._kept)
        return len(self._kept) == len(self._losses) and held + new.bytes <= self.graph_bytes

    def _changed(self, batch: Linearised) -> bool:
        before = self._losses.setdefault(batch.index, float(batch.loss))
        return abs(float(batch.loss) - before) > 1e-4 * abs(before)

    def _linearise(self, batch: Batch) -> Linearised:
        chosen = dict(zip(self.objective.layout.names, self._leaves, strict=True))
        loss = self.objective.batch_loss(chosen, batch.x, batch.y)
        gradients = torch.autograd.grad(
            loss, self._leaves, create_graph=True, materialize_grads=True
        )
        return Linearised(
            batch.index, batch.samples, loss.detach(), gradients, self._leaves, held_by(gradients)
        )


def held_by(tensors: Sequence[Tensor]) -> int:
    """Bytes of the tensors that the graph behind some tensors keeps for its backward pass."""
    storages: dict[int, int] = {}
    waiting = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        for saved in _saved(node):
            storage = saved.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        fresh = {inner for inner, _ in node.next_functions if inner is not None} - seen
        seen |= fresh
        waiting += fresh
    return sum(storages.values())


def _saved(node: Any) -> Iterator[Tensor]:
    names = [name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"]
    try:
        for value in (getattr(node, name) for name in names):
            parts = value if isinstance(value, tuple) else (value,)
            yield from (part for part in parts if isinstance(part, Tensor))
    except RuntimeError:  # overwritten in place: the product itself will say so
        return
