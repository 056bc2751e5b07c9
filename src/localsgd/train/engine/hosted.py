"""The workers that one process hosts: w models whose tensors are views of w rows.

    w_k <- w_k - γ g_k,   for every worker k hosted here, each on its own batch

Shapes: w workers hosted here · n scalars of a row of parameters · b scalars of a row of buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from localsgd.inner.transforms import Transform
from localsgd.rows.layout import Layout, adopt
from localsgd.train.engine.batched import AtOnce, LossesOf
from localsgd.train.engine.fused_step import Together

LossOf = Callable[[nn.Module, int, int], Tensor]
"""Computes the loss, a scalar, of a model on the batch of (worker, steps taken before)."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Inner:
    """The optimizer of the local steps.

    Args:
        make: makes an optimizer of parameter groups (dictionaries with `params`, `weight_decay`).
        weight_decay: of all parameters except those named in `no_decay`.
        no_decay: names of parameters without weight decay.
        elementwise: whether a scalar's step depends on that scalar alone. Then a row is stepped as
            two vectors (with and without weight decay) instead of tensor by tensor, and the rows of
            all workers together.
    """

    make: Callable[[list[dict[str, Any]]], Optimizer]
    weight_decay: float = 0.0
    no_decay: Collection[str] = frozenset()
    elementwise: bool = True


class Workers:
    """The workers `ids`, all starting from `model`.

    `params [w, n]` and `grads [w, n]` have the same layout; `buffers` has rows of float buffers
    (batch-norm statistics) and of integer ones, by dtype. Parameters with weight decay come first.

    Args:
        model: the starting point; it becomes the first worker's model and is copied for the others.
        loss: computes the loss of a model on a worker's batch.
        inner: the optimizer of local steps.
        ids: the workers hosted here, as indices among all K.
        multiple: rows of parameters have a length that is a multiple of this.
        transforms: change each worker's gradient before it is averaged or used in a step.
        active: whether a worker takes the current step; all do if not given.
        heard: called with every loss, and the row of its worker.
        norms: called with the norm of every gradient as the backward pass has made it, and the row
            of its worker; none is computed if not given.
        losses: of all workers at once, used instead of `loss` if all are active (see `batched.py`).

    `taken` counts the steps of each hosted worker; it equals `step` if all are always active.
    `accumulated` counts the batches whose gradients are summed in `grads` for a later step, the
    first of them at the learning rate `accumulated_rate` (see `growing_batch.py`).
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossOf,
        inner: Inner,
        ids: Sequence[int],
        multiple: int = 16,
        transforms: Sequence[Transform] = (),
        active: Callable[[int], bool] = lambda worker: True,
        heard: Callable[[int, Tensor], None] = lambda row, loss: None,
        losses: LossesOf | None = None,
        norms: Callable[[int, Tensor], None] | None = None,
    ) -> None:
        self.ids = tuple(ids)
        self.step = 0
        self.taken = [0] * len(self.ids)
        self.accumulated = 0
        self.accumulated_rate = 0.0
        self.transforms = tuple(transforms)
        self._active = active
        self._heard = heard
        self._norms = norms
        self._stepping = [True] * len(self.ids)
        self._loss = loss
        self._inner = inner
        device = next(model.parameters()).device
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        named.sort(key=lambda item: item[0] in inner.no_decay)  # stable: with weight decay first
        self.layout = Layout.of(named, multiple=multiple)
        self._decayed = sum(1 for name, _ in named if name not in inner.no_decay)
        count = len(self.ids)
        self.params = self.layout.rows(count, device)
        self.grads = self.layout.rows(count, device)
        self.loss_sums = torch.zeros(count, dtype=torch.float64, device=device)
        self.loss_counts = [0] * count
        self.models = [model, *(copy.deepcopy(model) for _ in self.ids[1:])]
        self.buffers = _adopt_buffers(self.models)
        self._at_once: AtOnce | None = None
        if losses is not None:
            self._at_once = AtOnce(losses, self.layout, self.params, self.grads, self.buffers)
        self.optimizers = [self._adopt(row, worker) for row, worker in enumerate(self.models)]
        several = inner.elementwise and count > 1
        self._together = Together(inner.make, self.optimizers) if several else None
        self._watchers: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def around_steps(
        self, before: Callable[[], None] = _nothing, after: Callable[[], None] = _nothing
    ) -> None:
        """Calls `before` and `after` around every step of the inner optimizers."""
        self._watchers.append((before, after))

    def _adopt(self, row: int, model: nn.Module) -> Optimizer:
        parameters = dict(model.named_parameters())
        slots = self.layout.slots
        adopt(self.layout, self.params[row], ((slot.name, parameters[slot.name]) for slot in slots))
        for name, gradient in self.layout.views(self.grads[row]).items():
            parameters[name].grad = gradient
        return self._inner.make(list(self._groups(row, parameters)))

    def _groups(self, row: int, parameters: dict[str, nn.Parameter]) -> Iterator[dict[str, Any]]:
        slots = self.layout.slots
        for first, last, weight_decay in (
            (0, self._decayed, self._inner.weight_decay),
            (self._decayed, len(slots), 0.0),
        ):
            if first == last:
                continue
            if self._inner.elementwise:
                start = slots[first].offset
                end = slots[last].offset if last < len(slots) else self.layout.length
                vector = nn.Parameter(self.params[row, start:end], requires_grad=False)
                vector.grad = self.grads[row, start:end]
                yield {"params": [vector], "weight_decay": weight_decay}
            else:
                tensors = [parameters[slot.name] for slot in slots[first:last]]
                yield {"params": tensors, "weight_decay": weight_decay}

    def backward(self) -> None:
        """Computes the gradients of every active worker on its next batch, into `grads`."""
        self.grads.zero_()
        self.add_gradients()
        self.transform_gradients(self.step)

    def add_gradients(self) -> None:
        """Adds the gradients of the next batches to `grads`, without transforms."""
        self._stepping = [self._active(worker) for worker in self.ids]
        if self._at_once is not None and all(self._stepping):
            losses = self._at_once.backward(self.models[0], self.ids, self.taken)
            for row, loss in enumerate(losses):
                self._has_gradient(row, loss)
            return
        for row, (worker, model) in enumerate(zip(self.ids, self.models, strict=True)):
            if self._stepping[row]:
                loss = self._loss(model, worker, self.taken[row])
                loss.backward()
                self._has_gradient(row, loss.detach())

    def _has_gradient(self, row: int, loss: Tensor) -> None:
        self.loss_sums[row] += loss
        self.loss_counts[row] += 1
        self._heard(row, loss)
        if self._norms is not None:
            self._norms(row, torch.linalg.vector_norm(self.grads[row]))

    def transform_gradients(self, step: int) -> None:
        """Transforms every active worker's gradient before it is averaged or used in a step.

        Args:
            step: local steps done before the one that the gradient is of.
        """
        if not self.transforms:
            return
        for row, (worker, active) in enumerate(zip(self.ids, self._stepping, strict=True)):
            if active:
                for transform in self.transforms:
                    transform(self.grads[row], worker, step)
                self.layout.clear_padding(self.grads[row])

    def apply(self, learning_rate: float) -> None:
        """Steps every active worker's inner optimizer, and ends the local step."""
        self.step_all(learning_rate)
        self.count_step()

    def count_step(self) -> None:
        """Ends the local step."""
        self.step += 1
        for row, active in enumerate(self._stepping):
            self.taken[row] += active

    def step_all(self, learning_rate: float) -> None:
        """Steps the inner optimizers of all active workers with `grads`."""
        for before, _ in self._watchers:
            before()
        together = self._together if all(self._stepping) else None
        if together is None or not together.step(learning_rate):
            self._step_each(learning_rate)
        for _, after in self._watchers:
            after()

    def _step_each(self, learning_rate: float) -> None:
        for optimizer, active in zip(self.optimizers, self._stepping, strict=True):
            if not active:
                continue
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()

    def take_losses(self) -> tuple[Tensor, list[int]]:
        """Sums of the training losses `[w]` since the last call, and over how many steps each."""
        taken = self.loss_sums.clone(), self.loss_counts
        self.loss_sums.zero_()
        self.loss_counts = [0] * len(self.ids)
        return taken

    def state(self, row: int) -> dict[str, Any]:
        """The state of worker `ids[row]` to save: its rows and its inner optimizer's state."""
        return {
            "params": self.params[row],
            "buffers": [rows[row] for _, rows in self.buffers],
            "inner": _without_empty(self.optimizers[row].state_dict()),
            "loss": (self.loss_sums[row], self.loss_counts[row]),
            "taken": self.taken[row],
            **({"accumulated": self._accumulated(row)} if self.accumulated else {}),
        }

    def load(self, row: int, state: dict[str, Any]) -> None:
        _fill(self.params[row], state["params"])
        for (_, rows), saved in zip(self.buffers, state["buffers"], strict=True):
            _fill(rows[row], saved)
        self.optimizers[row].load_state_dict(state["inner"])
        if self._together is not None:
            self._together.link()
        self.loss_sums[row], self.loss_counts[row] = state["loss"]
        self.taken[row] = state["taken"]
        if "accumulated" in state:
            self.grads[row], self.accumulated, self.accumulated_rate = state["accumulated"]

    def _accumulated(self, row: int) -> tuple[Tensor, int, float]:
        return self.grads[row], self.accumulated, self.accumulated_rate


def _fill(row: Tensor, saved: Tensor) -> None:
    """Copies what was saved of a row; nothing is stretched to its shape."""
    if saved.shape != row.shape:
        raise ValueError(f"{saved.numel()} numbers stand for {row.numel()}")
    row.copy_(saved)


def _adopt_buffers(models: Sequence[nn.Module]) -> list[tuple[Layout, Tensor]]:
    named = list(models[0].named_buffers())
    adopted = []
    for dtype in dict.fromkeys(buffer.dtype for _, buffer in named):
        layout = Layout.of((name, buffer) for name, buffer in named if buffer.dtype == dtype)
        rows = layout.rows(len(models), named[0][1].device)
        names = {slot.name for slot in layout.slots}
        for row, model in zip(rows, models, strict=True):
            adopt(layout, row, ((n, b) for n, b in model.named_buffers() if n in names))
        adopted.append((layout, rows))
    return adopted


def _without_empty(inner: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state without parameters that have none, so that it is always the same."""
    return {**inner, "state": {key: own for key, own in inner["state"].items() if own}}
