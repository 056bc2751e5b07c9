"""Averages gradients before the step, for the levels that average after every step.

    g_k <- mean over the members of k's block of g_k

Gradients belong to the user, so they are packed into a temporary tensor of bounded size, averaged
by the same levels as models, and copied back. A missing gradient counts as zeros; if no worker of
the block has it, it stays missing.

Shapes: n scalars of a pack: gradients, then a mark for each tensor, the worker's extra numbers, and
a mark for the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakMethod

import torch
from torch import Tensor, nn

from localsgd.averaging.level import Averaging, average_and_share
from localsgd.errors import UserError
from localsgd.optimizer.not_finite import seen_not_finite
from localsgd.rows.layout import Layout
from localsgd.rows.model_rows import Row
from localsgd.rows.shards import local, place_gradient

PACK_BYTES = 32 * 2**20
"""Largest size of a pack of several tensors: enough for the wire, and small beside a model."""

MakeLevels = Callable[[Tensor], Sequence[Averaging]]
"""Makes the levels that average a vector `[n]` over this worker's block."""


@dataclass(frozen=True)
class Pack:
    """Some of a row's parameters, and the layout of their gradients in the temporary tensor."""

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    layout: Layout
    device: torch.device

    def average(
        self,
        make_levels: MakeLevels,
        mark: bool,
        extra: Sequence[float] = (),
        says: Callable[[], None] = lambda: None,
    ) -> tuple[Tensor, Tensor]:
        """Averages the gradients; returns the mean mark, a scalar tensor, and the mean extras.

        A worker whose gradients are seen not to be finite sets its mark, and calls
        `says` before.
        """
        row = self.layout.rows(1, self.device)[0]
        *views, marks = self.layout.views(row).values()
        missing = self._fill(views, marks)
        count = len(self.parameters)
        if seen_not_finite(row):
            mark = True
            says()
        marks[-1] = float(mark)
        for index, number in enumerate(extra, count):
            marks[index] = number
        average_and_share(make_levels(row))
        used = (
            marks[:count].tolist() if missing else ()
        )  # waits for the device, so only where needed
        for index in missing:
            if used[index]:
                parameter = self.parameters[index]
                parameter.grad = torch.empty_like(parameter)
        self._empty(views)
        return marks[-1], marks[count:-1]

    def _fill(self, views: Sequence[Tensor], marks: Tensor) -> list[int]:
        """Copies the gradients that exist; returns the indices of the missing ones."""
        for parameter in self.parameters:
            place_gradient(parameter)
        missing = [i for i, parameter in enumerate(self.parameters) if parameter.grad is None]
        present = [i for i, parameter in enumerate(self.parameters) if parameter.grad is not None]
        grads = [_dense(self.names[i], self.parameters[i]) for i in present]
        if grads:
            torch._foreach_copy_([views[i] for i in present], grads)
        marks[: len(self.parameters)] = 1
        if missing:
            marks[missing] = 0
        return missing

    def _empty(self, views: Sequence[Tensor]) -> None:
        """Copies the views into the gradients that exist."""
        grads = [p.grad for p in self.parameters]
        pairs = [(local(g), v) for g, v in zip(grads, views, strict=True) if g is not None]
        if pairs:
            torch._foreach_copy_([grad for grad, _ in pairs], [view for _, view in pairs])


def _dense(name: str, parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    if gradient is not None and gradient.dtype != parameter.dtype:
        raise UserError(
            f"{name} is {parameter.dtype} and its gradient {gradient.dtype}, which would be "
            "rounded where gradients are averaged; let gradients have the dtype of their "
            'parameters, or choose average="models"'
        )
    if gradient is None or gradient.layout != torch.strided:
        raise UserError(
            f"{name} has a sparse gradient, and sparse gradients can't be averaged here; choose "
            'average="models", or sparse=False for that layer'
        )
    return local(gradient).detach()


def packs_of(row: Row, multiple: int, extra: int = 0) -> Iterator[Pack]:
    """Cuts a row into packs of at most `PACK_BYTES`, in order, with room for `extra` numbers."""
    chosen: list[tuple[str, nn.Parameter]] = []
    size = 0
    for slot, parameter in zip(row.layout.slots, row.parameters, strict=True):
        nbytes = local(parameter).nbytes
        if chosen and size + nbytes > PACK_BYTES:
            yield _pack(chosen, row, multiple, extra)
            chosen, size = [], 0
        chosen.append((slot.name, parameter))
        size += nbytes
    yield _pack(chosen, row, multiple, extra)


def _pack(chosen: Sequence[tuple[str, nn.Parameter]], row: Row, multiple: int, extra: int) -> Pack:
    marks = row.values.new_empty(len(chosen) + extra + 1)
    layout = Layout.of(
        [*((n, local(p.data)) for n, p in chosen), (" marks", marks)], multiple=multiple
    )
    names, parameters = zip(*chosen, strict=True)
    return Pack(names, parameters, layout, row.values.device)


def call_after_backward(parameters: Iterable[Tensor], call: Callable[[], None]) -> None:
    """Calls a bound method in every later backward pass, for each gradient that it adds to."""
    weak = WeakMethod(call)  # The parameters outlive their optimizer.

    def added(_: Tensor) -> None:
        if (alive := weak()) is not None:
            alive()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(added)
