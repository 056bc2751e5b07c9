"""Forward and backward passes of all workers of a process in one batch.

A small model's step is mostly the cost of starting its operations. Over the stacked tensors of w
workers they are started once for all: a matrix product becomes one of w matrices, a convolution one
of w groups. It is what each worker does alone, to rounding.

Shapes: w workers hosted here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from localsgd.errors import UserError
from localsgd.rows.layout import Layout

Named = dict[str, Tensor]

LossesOf = Callable[[nn.Module, Named, Sequence[int], Sequence[int]], Tensor]
"""Computes the losses `[w]` of a model with tensors `[w, ...]` by name.

The batches are those of the given workers after the steps that each has taken.
"""


class AtOnce:
    """Gradients of all workers in one pass over their stacked tensors, which are views of the rows.

    Args:
        losses: what is computed.
        layout: of `params` and `grads`, both `[w, n]`.
        buffers: layouts and rows.
    """

    def __init__(
        self,
        losses: LossesOf,
        layout: Layout,
        params: Tensor,
        grads: Tensor,
        buffers: Sequence[tuple[Layout, Tensor]],
    ) -> None:
        self._losses = losses
        leaves = {
            name: view.detach().requires_grad_() for name, view in layout.stacked(params).items()
        }
        self._leaves = tuple(leaves.values())
        self._grads = tuple(layout.stacked(grads).values())
        self._buffers = {
            name: view for own, rows in buffers for name, view in own.stacked(rows).items()
        }
        # Batch norm writes its statistics into what it is given only if that is contiguous.
        self._written = {name: view.contiguous() for name, view in self._buffers.items()}
        self._tensors = {**leaves, **self._written}

    def backward(self, model: nn.Module, workers: Sequence[int], taken: Sequence[int]) -> Tensor:
        """Computes the losses `[w]`, and adds the gradients to the existing ones."""
        for name, view in self._buffers.items():
            self._written[name].copy_(view)
        losses = self._losses(model, self._tensors, workers, taken)
        for name, view in self._buffers.items():
            view.copy_(self._written[name])
        found = torch.autograd.grad(losses.sum(), self._leaves, allow_unused=True)
        for grad, new in zip(self._grads, found, strict=True):
            if new is not None:
                grad += new
        return losses.detach()


def batched_losses(
    batch: Callable[[int, int], tuple[Tensor, Tensor]],
    loss: Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], Tensor],
) -> LossesOf:
    """Losses by `torch.func.vmap`.

    Args:
        batch: of (worker, steps that it took before).
        loss: of something that maps inputs to outputs, inputs and targets.
    """

    def losses(
        model: nn.Module, tensors: Named, workers: Sequence[int], taken: Sequence[int]
    ) -> Tensor:
        def one(own: Named, x: Tensor, y: Tensor) -> Tensor:
            return loss(lambda given: functional_call(model, own, (given,)), x, y)

        batches = [batch(worker, step) for worker, step in zip(workers, taken, strict=True)]
        x, y = (torch.stack(parts) for parts in zip(*batches, strict=True))
        return vmap(one)(tensors, x, y)

    return losses


def check_batched(model: nn.Module, name: str) -> None:
    """Raises for a model that can't process all workers at once."""
    for place, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            reason = f"draws at random ({place} is a {type(module).__name__})"
        elif isinstance(module, nn.RNNBase):
            reason = f"is recurrent ({place} is a {type(module).__name__})"
        else:
            continue
        raise UserError(
            f"batched needs a model that does the same for all workers, but {name} {reason}; "
            "leave out batched"
        )
