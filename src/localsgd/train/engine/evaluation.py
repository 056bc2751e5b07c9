"""The averaged model and its evaluation.

The averaged model is the mean of the workers' models as they are, in the middle of a round too,
with
the statistics of batch norm that the run names: the workers' mean (the variance with the term
between workers), re-estimated on training data, or worker 0's. Making and judging it leaves the
workers untouched.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from localsgd.averaging.buffers import mean_buffers
from localsgd.averaging.derived import renew
from localsgd.basics.seeds import generator_for
from localsgd.landscape.statistics import evaluation_mode
from localsgd.reduce import OrderedMean
from localsgd.reduce.compressor import widest
from localsgd.train.data.task import as_read
from localsgd.train.engine.assembly import Assembly
from localsgd.wire import Collective

CHUNK = 1 << 20
"""Scalars of a row that are averaged at a time, so that no large model is copied as a whole."""
BATCH = 500
"""Largest batch for re-estimating batch-norm statistics."""
RECALIBRATION = 10_000
"""Most training samples from which batch-norm statistics are re-estimated."""


@dataclass(frozen=True)
class Score:
    """Mean `loss` and `accuracy` in [0, 1] of a model over all targets of the test set."""

    loss: float
    accuracy: float


@torch.no_grad()
def averaged_model(assembly: Assembly) -> nn.Module:
    """A new model with the mean of all workers' weights. Every process must call it."""
    workers, world = assembly.workers, assembly.placement.world
    model = copy.deepcopy(workers.models[0])
    mean = mean_row(workers.params, world)
    parameters = dict(model.named_parameters())
    for name, value in workers.layout.views(mean).items():
        parameters[name].copy_(value)
    policy = assembly.run.batch_norm
    found = mean_buffers(workers.models, world)
    averaged = {name: buffer for name, buffer in model.named_buffers() if name in found}
    for name, buffer in averaged.items():
        if policy == "mean":
            buffer.copy_(found[name])
    if policy == "own":
        _take_firsts(averaged.values(), assembly)
    if world.members > 1:
        renew(model)
    if policy == "recalibrated":
        recalibrate(model, assembly)
    return model.eval()


def mean_row(params: Tensor, world: Collective) -> Tensor:
    """The mean `[n]` of all K workers' rows, of which `params [w, n]` are hosted here."""
    mean = torch.empty_like(params[0])
    for start in range(0, mean.numel(), CHUNK):
        part = params[:, start : start + CHUNK].clone().unsqueeze(0)
        mean[start : start + CHUNK] = OrderedMean().reduce(part, None, world).wait()[0]
    return mean


def drift_of(params: Tensor, world: Collective) -> dict[str, float]:
    """How far all K workers are apart, of whose rows `params [w, n]` are hosted here.

    `to_mean` is the mean distance of the workers to their mean, `between` that of two workers: from
    the Gram matrix of the rows minus their mean, in float64. Every process must call it. It gathers
    each row once, in pieces, so that no process holds all of them.
    """
    count = world.members
    gram = torch.zeros(count, count, dtype=widest(params.device), device=params.device)
    for part in params.split(max(1, CHUNK // count), dim=1):
        rows = world.gather(part.clone().unsqueeze(0)).wait()[0].to(gram.dtype)
        away = rows - rows.mean(0)
        gram += away @ away.T
    squares = gram.diagonal()
    pairs = (squares[:, None] + squares - 2 * gram).clamp(min=0).sqrt()
    return {
        "to_mean": float(squares.sqrt().mean()),
        "between": float(pairs.triu(1).sum()) / max(1, count * (count - 1) // 2),
    }


def _take_firsts(buffers: Iterable[Tensor], assembly: Assembly) -> None:
    """Fills `buffers`, those of the first worker hosted here, with worker 0's."""
    hosted, world = assembly.placement.hosted, assembly.placement.world
    for buffer in buffers:
        rows = buffer.reshape(1, 1, -1).repeat(1, hosted, 1)
        buffer.copy_(world.gather(rows).wait()[0, 0].view_as(buffer))


@torch.no_grad()
def recalibrate(model: nn.Module, assembly: Assembly) -> None:
    """Re-estimates batch-norm statistics: plain means over batches of training data.

    The data is read as training reads it, augmented and in the run's precision. A fitted network
    has other activations on images without their crops and flips: on those, statistics cost
    ResNet-20 on CIFAR-10 about four points of test accuracy.
    """
    model.eval()
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative
        norm.train()
    count = min(RECALIBRATION, assembly.task.train_size)
    batch = min(BATCH, assembly.task.judged_together)
    draws = generator_for(assembly.run.seed, "recalibration")
    with assembly.autocast():
        for indices in assembly.task.mixed(count - count % batch or count).split(batch):
            x, _ = assembly.task.train_batch(indices, draws)
            model(as_read(x, model))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()


def score(model: nn.Module, assembly: Assembly) -> Score:
    """Evaluates `model` on the test set, shared among the processes. Every process must call it."""
    world, pieces = assembly.placement.world, torch.arange(assembly.task.pieces)
    processes = assembly.plan.topology.workers // assembly.placement.hosted
    mine = pieces.tensor_split(processes)[assembly.placement.rank]
    sums = _sums(model, assembly, mine).repeat(1, assembly.placement.hosted, 1)
    loss, correct, count = (world.sum(sums).wait()[0] / assembly.placement.hosted).tolist()
    return Score(loss / count, correct / count)


def local_score(assembly: Assembly) -> Score:
    """The mean over all K workers of their own models' scores, each on the whole test set."""
    everything = torch.arange(assembly.task.pieces)
    sums = []
    for model in assembly.workers.models:
        with evaluation_mode(model):
            sums.append(_sums(model, assembly, everything))
    total = assembly.placement.world.sum(torch.stack(sums).unsqueeze(0)).wait()[0]
    loss, correct, count = total.tolist()
    return Score(loss / count, correct / count)


@torch.no_grad()
def _sums(model: nn.Module, assembly: Assembly, pieces: Tensor) -> Tensor:
    """The sums of losses, correct predictions and targets: `[3]`."""
    sums = torch.zeros(3, dtype=torch.float64)
    with assembly.autocast():
        for some in pieces.split(assembly.task.judged_together) if len(pieces) else ():
            sums += assembly.task.judge(model, some)
    return sums.to(assembly.workers.params.device)
