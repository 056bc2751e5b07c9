"""Batch-norm statistics of an evaluation, stated: kept, averaged over workers, or re-estimated.

A network with batch norm is a function of its weights only once the statistics are fixed. All
evaluations of this package run in eval mode with one `Statistics`; a model's own buffers are read,
never written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.func import functional_call

from localsgd.errors import UserError
from localsgd.landscape.batches import Data, batches, call_arguments, count_samples
from localsgd.landscape.group import rank_and_size, summed

Kind: TypeAlias = Literal["kept", "averaged", "estimated", "interpolated"]


@dataclass(frozen=True)
class Statistics:
    """All buffers a model is evaluated with, by name, and how they came about."""

    kind: Kind
    buffers: Mapping[str, Tensor] = field(repr=False)


def kept(model: nn.Module) -> Statistics:
    """The model's own buffers as they are now."""
    return Statistics("kept", {name: b.detach().clone() for name, b in model.named_buffers()})


def averaged(models: Sequence[nn.Module]) -> Statistics:
    """Statistics of several workers as one: the mean, the variance with the between-worker term.

    mean = E_k[mean_k], var = E_k[var_k] + E_k[(mean_k - mean)^2], in float64. Buffers that are not
    batch-norm statistics are the mean where floating, else the first model's.
    """
    states = [dict(model.named_buffers()) for model in models]
    buffers = {name: _mean([state[name] for state in states]) for name in states[0]}
    for prefix, _ in batch_norms(models[0]):
        mean, var = f"{prefix}running_mean", f"{prefix}running_var"
        means, variances = (
            torch.stack([state[name] for state in states]).double() for name in (mean, var)
        )
        between = (means - means.mean(0)).square().mean(0)
        buffers[var] = (variances.mean(0) + between).to(states[0][var])
    return Statistics("averaged", buffers)


def interpolated(first: Statistics, second: Statistics, position: float) -> Statistics:
    """Buffers on the line (1 - position) first + position second; integers are the first's.

    Between the models all are mixed so; beyond them variances would turn negative, and go on as the
    nearer model's instead.
    """
    within = min(max(position, 0.0), 1.0)
    variances = {name for name in first.buffers if name.endswith("running_var")}
    buffers = {
        name: torch.lerp(b, second.buffers[name], within if name in variances else position)
        if b.is_floating_point()
        else b
        for name, b in first.buffers.items()
    }
    return Statistics("interpolated", buffers)


def estimated(
    model: nn.Module,
    data: Data,
    *,
    weights: Mapping[str, Tensor] | None = None,
    group: ProcessGroup | None = None,
    samples_of: Callable[[Any, Any], int] = count_samples,
) -> Statistics:
    """Batch-norm statistics measured over `data` at the model's weights, or at those given by name.

    One pass with batch statistics on the way up; each layer's input is pooled over all batches by
    count: mean = E[z], var = (E[z^2] - mean^2) N / (N - 1), N values a channel. Dropout is off.
    The batches' own sizes enter only through what deeper layers see.
    """
    norms = [(prefix, module) for prefix, module in batch_norms(model)]
    base = kept(model)
    if not norms:
        return Statistics("estimated", base.buffers)
    sums = _moments(model, norms, base, data, weights or {}, group, samples_of)
    buffers = dict(base.buffers)
    for prefix, _ in norms:
        count, first, second = sums[prefix]
        mean = first / count
        var = (second / count - mean**2).clamp(min=0) * (count / (count - 1).clamp(min=1))
        for name, value in (("running_mean", mean), ("running_var", var)):
            buffers[prefix + name] = value.to(base.buffers[prefix + name])
    return Statistics("estimated", buffers)


def batch_norms(model: nn.Module) -> Iterator[tuple[str, nn.modules.batchnorm._BatchNorm]]:
    """Batch-norm modules with running statistics, with their name as a prefix (`layer1.bn.`)."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            yield (f"{name}." if name else ""), module


@contextmanager
def evaluation_mode(model: nn.Module) -> Generator[None]:
    """Eval mode inside; every module's own mode is put back afterwards, whatever happens."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean(0) if values[0].is_floating_point() else values[0].clone()


def _moments(
    model: nn.Module,
    norms: Sequence[tuple[str, nn.modules.batchnorm._BatchNorm]],
    base: Statistics,
    data: Data,
    weights: Mapping[str, Tensor],
    group: ProcessGroup | None,
    samples_of: Callable[[Any, Any], int],
) -> dict[str, Tensor]:
    """For each layer [3, channels]: count, sum, sum of squares; float64, over all processes."""
    rank, world = rank_and_size(group)
    sums = {
        prefix: base.buffers[f"{prefix}running_mean"].new_zeros(
            3, module.num_features, dtype=torch.float64
        )
        for prefix, module in norms
    }

    def hook(prefix: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def add(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            z = inputs[0].detach().transpose(0, 1).flatten(1).double()
            count = torch.full_like(z[:, 0], z.shape[1])
            sums[prefix] += torch.stack([count, z.sum(1), (z * z).sum(1)])

        return add

    handles = [module.register_forward_pre_hook(hook(prefix)) for prefix, module in norms]
    try:
        with torch.no_grad(), evaluation_mode(model):
            for _, module in norms:
                module.training = True
            like = next(model.parameters())
            for batch in batches(data, rank=rank, world=world, like=like, samples_of=samples_of):
                args, kwargs = call_arguments(batch.x)
                scratch = {name: b.clone() for name, b in base.buffers.items()}
                functional_call(model, {**weights, **scratch}, args, kwargs)
    except ValueError as error:
        raise UserError(f"batch-norm statistics cannot be estimated: {error}") from error
    finally:
        for handle in handles:
            handle.remove()
    totals = summed(torch.cat([sums[prefix].flatten() for prefix, _ in norms]), group)
    parts = totals.split([sums[prefix].numel() for prefix, _ in norms])
    if float(totals[0]) == 0:
        raise UserError("the data for batch-norm statistics are empty; give at least one batch")
    return {prefix: part.view(3, -1) for (prefix, _), part in zip(norms, parts, strict=True)}
