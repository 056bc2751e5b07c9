"""Averages gradients before the step, for the levels that average after every step.

    g_k <- mean over the members of k's block of g_k

Gradients belong to the user, so they are packed into a temporary of bounded size, averaged by the
same levels as models are, and copied back. A parameter without a gradient counts as zeros; one that
no worker of the block has a gradient for stays without.

Shapes: n scalars of a pack: gradients, then a mark for each tensor, what the worker tells beside,
and a mark for the worker.
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

PACK_BYTES = 32 * 2**20
"""Of a pack at most, larger single tensors apart: enough for the wire, little beside a model."""

MakeLevels = Callable[[Tensor], Sequence[Averaging]]
"""From a vector `[n]` to the levels that average it over this worker's block."""


@dataclass(frozen=True)
class Pack:
    """Some of a row's parameters and where their gradients lie in the temporary."""

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    layout: Layout
    device: torch.device

    def average(
        self,
        make_levels: MakeLevels,
        mark: bool,
        told: Sequence[float] = (),
        says: Callable[[], None] = lambda: None,
    ) -> tuple[Tensor, Tensor]:
        """Averages the gradients; returns the means of the workers' marks, a scalar tensor, and of
        what they told. A worker whose gradients are seen not to be finite sets its mark, and calls
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
        for index, number in enumerate(told, count):
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
        """Copies the gradients that there are; returns the places of the others."""
        missing = [i for i, parameter in enumerate(self.parameters) if parameter.grad is None]
        present = [i for i, parameter in enumerate(self.parameters) if parameter.grad is not None]
        grads = [_dense(self.names[i], self.parameters[i].grad) for i in present]
        if grads:
            torch._foreach_copy_([views[i] for i in present], grads)
        marks[: len(self.parameters)] = 1
        if missing:
            marks[missing] = 0
        return missing

    def _empty(self, views: Sequence[Tensor]) -> None:
        """Copies what the views hold into the gradients that there are."""
        grads = [p.grad for p in self.parameters]
        pairs = [(g, view) for g, view in zip(grads, views, strict=True) if g is not None]
        if pairs:
            torch._foreach_copy_([grad for grad, _ in pairs], [view for _, view in pairs])


def _dense(name: str, gradient: Tensor | None) -> Tensor:
    if gradient is None or gradient.layout != torch.strided:
        raise UserError(
            f"{name} has a sparse gradient, and sparse gradients can't be averaged here; choose "
            'average="models", or sparse=False for that layer'
        )
    return gradient


def packs_of(row: Row, multiple: int, told: int = 0) -> Iterator[Pack]:
    """Cuts a row into packs of at most `PACK_BYTES`, in its order, with room for `told` numbers."""
    chosen: list[tuple[str, nn.Parameter]] = []
    size = 0
    for slot, parameter in zip(row.layout.slots, row.parameters, strict=True):
        if chosen and size + parameter.nbytes > PACK_BYTES:
            yield _pack(chosen, row, multiple, told)
            chosen, size = [], 0
        chosen.append((slot.name, parameter))
        size += parameter.nbytes
    yield _pack(chosen, row, multiple, told)


def _pack(chosen: Sequence[tuple[str, nn.Parameter]], row: Row, multiple: int, told: int) -> Pack:
    marks = row.values.new_empty(len(chosen) + told + 1)
    layout = Layout.of([*((n, p.data) for n, p in chosen), (" marks", marks)], multiple=multiple)
    names, parameters = zip(*chosen, strict=True)
    return Pack(names, parameters, layout, row.values.device)


def call_after_backward(parameters: Iterable[Tensor], call: Callable[[], None]) -> None:
    """Lets every later backward pass call a bound method, for each gradient that it adds to."""
    weak = WeakMethod(call)  # The parameters outlive their optimizer.

    def added(_: Tensor) -> None:
        if (alive := weak()) is not None:
            alive()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(added)
