"""The buffers of the agreed model: one set from those of all K workers.

Batch-norm statistics describe a mixture of what the workers saw, so the variance has a term between
workers (law of total variance):

    mean = 1/K sum_k mean_k,     var = 1/K sum_k (var_k + (mean_k - mean)^2)

Other floating buffers are averaged; integer, boolean and complex ones (counters, masks, tables) are
worker 0's. Buffers that are no part of the state dict (`persistent=False`), such as the state that
a recurrent model carries from batch to batch, are no part of the agreed model: they stay a worker's
own.

Shapes: w workers hosted here · b scalars of all floating buffers of a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from localsgd.collective import Collective
from localsgd.reduce import OrderedMean
from localsgd.reduce.compressor import widest
from localsgd.workers.layout import Layout

Named = dict[str, Tensor]


@torch.no_grad()
def mean_buffers(models: Sequence[nn.Module], world: Collective) -> Named:
    """The persistent buffers of the agreed model by name: new tensors, equal on all processes.

    Sums are taken in float64 and in the order of the workers, so that the result has the same bits
    however the workers are hosted. Collective: every process must call it.

    Args:
        models: of the w workers hosted here.
        world: joins all K workers, w of them here.
    """
    workers = [_persistent(model) for model in models]
    floating = [name for name, buffer in workers[0].items() if buffer.is_floating_point()]
    found: Named = {}
    if floating:
        found |= _means(workers, floating, list(_statistics(models[0])), world)
    if len(floating) < len(workers[0]):
        found |= _firsts(workers, [name for name in workers[0] if name not in floating], world)
    return {name: found[name].to(buffer) for name, buffer in workers[0].items()}


@torch.no_grad()
def put_buffers(model: nn.Module, values: Named) -> None:
    """Copies `values` into the model's buffers by name; others are left.

    An expanded buffer, several elements of which are one place in memory, can't change and is left.
    """
    for name, buffer in model.named_buffers():
        if name in values and all(
            stride or size < 2 for size, stride in zip(buffer.shape, buffer.stride(), strict=True)
        ):
            buffer.copy_(values[name])


def _persistent(model: nn.Module) -> Named:
    own = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    return {name: buffer for name, buffer in model.named_buffers() if name not in own}


def _means(
    workers: Sequence[Named],
    names: Sequence[str],
    statistics: Sequence[tuple[str, str]],
    world: Collective,
) -> Named:
    first = workers[0]
    device = first[names[0]].device
    layout = Layout.of(
        (name, torch.empty(first[name].shape, dtype=widest(device), device="meta"))
        for name in names
    )
    rows = layout.rows(len(workers), device)  # [w, b]
    packed = [layout.views(row) for row in rows]
    for views, worker in zip(packed, workers, strict=True):
        for name, view in views.items():
            view.copy_(worker[name])
    statistics = [pair for pair in statistics if set(pair) <= set(names)]
    if statistics:
        means = layout.views(_mean(rows.clone(), world))
        for views in packed:
            for mean, variance in statistics:
                views[variance] += (views[mean] - means[mean]).square()
    return layout.views(_mean(rows, world))


def _mean(rows: Tensor, world: Collective) -> Tensor:
    return OrderedMean().reduce(rows[None], None, world).wait()[0]


def _firsts(workers: Sequence[Named], names: Sequence[str], world: Collective) -> Named:
    """Worker 0's, gathered as bytes: the first of the first process's."""
    first = workers[0]
    device = first[names[0]].device
    mine = torch.cat([_bytes(first[name]).to(device) for name in names])
    told = world.gather(mine.expand(1, len(workers), -1).contiguous()).wait()[0, 0]
    parts = told.split([first[name].nbytes for name in names])
    return {
        name: part.clone().view(first[name].dtype).view(first[name].shape)
        for name, part in zip(names, parts, strict=True)
    }


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _statistics(model: nn.Module) -> Iterator[tuple[str, str]]:
    """The names of mean and variance of every layer that keeps both."""
    for prefix, module in model.named_modules():
        kept = dict(module.named_buffers(prefix, recurse=False))
        mean, variance = (
            ".".join(filter(None, (prefix, name))) for name in ("running_mean", "running_var")
        )
        if mean in kept and variance in kept and kept[mean].shape == kept[variance].shape:
            yield mean, variance
