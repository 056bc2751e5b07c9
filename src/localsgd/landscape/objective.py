"""The mean loss of a model over a data set, as a function of its chosen flat weights.

Letters: n chosen scalars.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.func import functional_call

from localsgd.errors import UserError
from localsgd.landscape.batches import Batch, Data, batches, call_arguments, count_samples
from localsgd.landscape.group import rank_and_size, summed
from localsgd.landscape.parameters import Layout, choose
from localsgd.landscape.statistics import Statistics, evaluation_mode, kept

Loss: TypeAlias = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Score:
    """Mean loss over the samples; accuracy in [0, 1], or None if targets aren't classes."""

    loss: float
    accuracy: float | None
    samples: int


@final
class Objective:
    """L(w) = sum_b s_b loss(model_w(x_b), y_b) / sum_b s_b, s_b the samples of batch b.

    `loss(output, y)` is the mean over a batch's samples. The model runs in eval mode with
    `statistics` (kept, unless given); its weights are those at the time of construction. The
    model itself, its mode, gradients and buffers are left as they were.

    Args:
      model: whose weights and buffers are read.
      loss: of an output and its targets, the mean over a batch.
      data: batches (x, y); `localsgd.landscape.batches` says what they may be.
      parameters: shell patterns of parameter names; by default all with `requires_grad`.
      statistics: batch-norm statistics (`kept`, `averaged`, `estimated`).
      group: processes that divide the batches; each gives the same data.
      samples_of: (x, y) -> weight of a batch, by default the first dimension of y.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Data,
        *,
        parameters: str | Sequence[str] | None = None,
        statistics: Statistics | None = None,
        group: ProcessGroup | None = None,
        samples_of: Callable[[Any, Any], int] = count_samples,
    ):
        if (reduction := getattr(loss, "reduction", "mean")) != "mean":
            raise UserError(
                f"the loss has reduction={reduction!r}, but batches are weighted by their size; "
                "give the mean over a batch (reduction='mean')"
            )
        self.model, self.loss, self.data = model, loss, data
        self.layout: Layout = choose(model, parameters)
        self.statistics = statistics or kept(model)
        self.group, self.samples_of = group, samples_of
        every = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.weights: Tensor = self.layout.flat(every)
        self._others = {k: p for k, p in every.items() if k not in self.layout.names}

    @property
    def n(self) -> int:
        return self.layout.n

    def batches(self, skip: int = 0) -> Iterator[Batch]:
        """This process's share of the batches, on the weights' device."""
        rank, world = rank_and_size(self.group)
        return batches(
            self.data,
            rank=rank,
            world=world,
            like=self.weights,
            samples_of=self.samples_of,
            skip=skip,
        )

    def output(
        self, chosen: Mapping[str, Tensor], x: Any, statistics: Statistics | None = None
    ) -> Any:
        """The model's output at the chosen weights given by name (inside `running`)."""
        buffers = (statistics or self.statistics).buffers
        args, kwargs = call_arguments(x)
        return functional_call(self.model, {**self._others, **buffers, **chosen}, args, kwargs)

    def batch_loss(self, chosen: Mapping[str, Tensor], x: Any, y: Any) -> Tensor:
        """The loss of one batch, a scalar (inside `running`)."""
        return scalar(self.loss(self.output(chosen, x), y))

    @contextmanager
    def running(self) -> Generator[None]:
        """A context with the model in eval mode, and torch's errors about it in one line."""
        with evaluation_mode(self.model), one_line_errors(self.model):
            yield

    def score(self, weights: Tensor | None = None, statistics: Statistics | None = None) -> Score:
        """Loss and accuracy at `weights` [n] (by default the model's), over all processes."""
        chosen = self.layout.named(self.weights if weights is None else weights)
        sums = torch.zeros(4, dtype=torch.float64)  # samples, loss, right ones, targets
        with torch.no_grad(), self.running():
            for batch in self.batches():
                output = self.output(chosen, batch.x, statistics)
                value = float(scalar(self.loss(output, batch.y)))
                right, targets = count_right(output, batch.y)
                sums += torch.tensor(
                    [batch.samples, batch.samples * value, right, targets], dtype=torch.float64
                )
        samples, loss, right, targets = summed(sums.to(self.weights.device), self.group).tolist()
        if not samples:
            raise UserError("the data are empty; give at least one batch")
        known = targets and math.isfinite(loss)  # of NaN the largest is the first class
        return Score(loss / samples, right / targets if known else None, int(samples))

    def gradient(self, weights: Tensor | None = None) -> Tensor:
        """The gradient [n] of the mean loss at `weights` (by default the model's)."""
        weights = self.weights if weights is None else weights
        total = self.weights.new_zeros(self.n + 2)
        with self.running():
            for batch in self.batches():
                leaves = [part.clone().requires_grad_() for part in self.layout.split(weights)]
                chosen = dict(zip(self.layout.names, leaves, strict=True))
                value = self.batch_loss(chosen, batch.x, batch.y)
                parts = torch.autograd.grad(value, leaves, materialize_grads=True)
                total[:-2] += batch.samples * self.layout.flat(parts)
                total[-2] += batch.samples
                total[-1] += batch.samples * value.detach()
        return mean_of(summed(total, self.group))


class NotFiniteLoss(UserError):
    """The loss is not finite, so it has no derivatives: the model has diverged."""


def mean_of(total: Tensor, tail: int = 2) -> Tensor:
    """Divides sums [..., samples, loss] by the samples; raises if the loss isn't finite."""
    samples, loss = float(total[-tail]), float(total[-tail + 1])
    if not samples:
        raise UserError("the data are empty; give at least one batch")
    if not math.isfinite(loss):
        raise NotFiniteLoss(
            f"the mean loss over the data is {loss / samples}; "
            "curvature needs a finite loss: check the weights and the inputs for nan and inf"
        )
    return total[:-tail] / samples


def scalar(value: Tensor) -> Tensor:
    """The loss of a batch; raises if it isn't one number."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        given = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else value
        raise UserError(f"the loss of a batch is {given}; give a loss that is one mean value")
    return value.reshape(())


def count_right(output: Any, y: Any) -> tuple[int, int]:
    """Correct and all predictions for class targets [b, ...] and scores [b, classes, ...].

    (0, 0) for other targets.
    """
    fits = isinstance(output, Tensor) and isinstance(y, Tensor) and output.ndim == y.ndim + 1
    if not fits or y.is_floating_point() or y.shape != (output.shape[:1] + output.shape[2:]):
        return 0, 0
    return int((output.argmax(1) == y).sum()), y.numel()


HINTS = {
    "inplace operation": "an operation writes in place over what its derivative needs",
    "does not require grad": "the loss does not depend on the chosen parameters (a detach, "
    "no_grad or .data on the way)",
    "is not implemented": "an operation has no second derivative; use another implementation of "
    "it (for attention: torch.nn.attention.sdpa_kernel(SDPBackend.MATH))",
    "double backwards": "an operation has no second derivative; switch off its fused kernel",
    "forward AD": "an operation has no forward derivative",
    "cudnn RNN backward": "cuDNN differentiates recurrent layers in training mode alone; measure "
    "on the CPU, or under torch.backends.cudnn.flags(enabled=False)",
}


@contextmanager
def one_line_errors(model: nn.Module) -> Generator[None]:
    """Turns torch's errors about a model's graph into one line."""
    try:
        yield
    except RuntimeError as error:
        text = " ".join(str(error).split())
        for mark, hint in HINTS.items():
            if mark in text:
                message = f"{type(model).__name__} cannot be differentiated: {hint} ({text[:160]})"
                raise UserError(message) from error
        raise
