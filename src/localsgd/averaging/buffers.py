"""The buffers of the averaged model, computed from those of all K workers.

Batch-norm statistics describe a mixture of what the workers saw, so the variance has a term between
workers (law of total variance):

    mean = 1/K sum_k mean_k,     var = 1/K sum_k (var_k + (mean_k - mean)^2)

Other floating buffers are averaged. Buffers without a mean are worker 0's: counters, codes and
tables of another dtype, masks of 0 and 1, and those derived from the weights (see `derived.py`).
A worker with more values that are not finite than another is left out of all this, so that what one
has met does not spread. What all have, such as a mask of 0 and -inf, leaves nobody out.

Buffers that are no plain tensors (sparse, quantised, nested, meta) stay, and must be equal on all
workers.

Buffers outside of the state dict (`persistent=False`), such as the state that a recurrent model
carries from batch to batch, are no part of the averaged model: each worker keeps its own.

Shapes: w workers hosted here · b scalars of all floating buffers of a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from localsgd.averaging.derived import derived_buffers
from localsgd.errors import UserError
from localsgd.reduce import OrderedMean
from localsgd.reduce.compressor import widest
from localsgd.rows.layout import Layout
from localsgd.rows.parts import bytes_of, digest_of_tensors, is_plain, put
from localsgd.wire import Collective

Named = dict[str, Tensor]

AVERAGED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes of buffers that are averaged. Narrower floats are codes that need a scale."""

MASKS = " masks"
"""The slot with a flag for each buffer: whether it is a mask of 0 and 1."""


@torch.no_grad()
def mean_buffers(models: Sequence[nn.Module], world: Collective) -> Named:
    """The persistent buffers of the averaged model by name: new tensors, equal on all processes.

    Sums are taken in float64 and in the order of the workers, so that the result has the same bits
    for any number of processes. Collective: every process must call it.

    Args:
        models: of the w workers hosted here.
        world: joins all K workers, w of them here.

    Raises:
        UserError: on all processes, if names, dtypes or shapes differ between workers, or values of
            buffers that can't be averaged or sent.
    """
    workers = [persistent(model) for model in models]
    first = workers[0]
    if not first:
        return {}
    plain = [name for name, buffer in first.items() if is_plain(buffer)]
    if world.members == 1:
        return {name: first[name].clone() for name in plain}
    device = _device(models[0])
    own = list(map(not_finite, workers))
    kept = _Kept(own, _check_alike(workers, own, world, device))
    derived = derived_buffers(models[0])
    mean = [name for name in plain if name not in derived and first[name].dtype in AVERAGED]
    found: Named = {}
    if mean:
        found |= _means(workers, mean, list(_statistics(models[0])), kept, world, device)
    copied = [name for name in plain if name not in found]
    if copied:
        found |= _firsts(workers, copied, kept, world, device)
    return {name: found[name].to(first[name]) for name in plain}


def not_finite(buffers: Named) -> int:
    """How many values of the floating ones among these buffers are not finite."""
    plain = (b for b in buffers.values() if is_plain(b) and b.dtype in AVERAGED)
    return sum(b.numel() - int(b.isfinite().sum()) for b in plain)


@dataclass(frozen=True)
class _Kept:
    """Those whose buffers are averaged: the workers with the fewest values that are not finite.

    Args:
        here: the number of such values of each worker hosted here.
        everywhere: of all K workers.
    """

    here: Sequence[int]
    everywhere: Sequence[int]

    @property
    def all_finite(self) -> bool:
        return not any(self.everywhere)

    @property
    def first(self) -> int:
        return self.everywhere.index(min(self.everywhere))

    def mean(self, rows: Tensor, world: Collective) -> Tensor:
        """The mean of `rows [w, b]` over those workers, `[b]`; `rows` are scratch."""
        if self.all_finite:
            return OrderedMean().reduce(rows[None], None, world).wait()[0]
        # With weights, as without them it would sum differences, of which infinities have none.
        least = min(self.everywhere)
        out = torch.tensor([own > least for own in self.here], device=rows.device)
        rows.masked_fill_(out.unsqueeze(-1), 0)
        ones = torch.ones_like(rows[:, 0]).unsqueeze(0)
        total = OrderedMean().reduce(rows[None], ones, world).wait()[0]
        return total / self.everywhere.count(least)


@torch.no_grad()
def put_buffers(model: nn.Module, values: Named) -> None:
    """Copies `values` into the model's buffers by name; other buffers stay as they are."""
    for name, buffer in model.named_buffers():
        if name in values:
            put(buffer, values[name])


class KeptBuffers:
    """A copy of a model's buffers: its tensors and their values."""

    @torch.no_grad()
    def __init__(self, model: nn.Module) -> None:
        self._tensors = [
            (module._buffers, name, buffer)
            for module in model.modules()
            for name, buffer in module._buffers.items()
        ]
        self._values = [(b, b.clone()) for b in model.buffers() if is_plain(b)]

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the buffers back, also those that have been replaced or resized since."""
        for home, name, buffer in self._tensors:
            home[name] = buffer
        for buffer, value in self._values:
            if buffer.shape == value.shape:
                put(buffer, value)
            else:
                buffer.data = value


def _device(model: nn.Module) -> torch.device:
    """The device of the model, from which tensors are sent; a buffer may be on another one."""
    tensors = (t for kind in (model.parameters(), model.buffers()) for t in kind)
    return next(tensor.device for tensor in tensors if not tensor.is_meta)


def persistent(model: nn.Module) -> Named:
    """The buffers that belong to the averaged model, by name."""
    left_out = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    return {name: buffer for name, buffer in model.named_buffers() if name not in left_out}


def _check_alike(
    workers: Sequence[Named], faults: Sequence[int], world: Collective, device: torch.device
) -> list[int]:
    """Raises on all processes if the workers' buffers don't fit together.

    Returns the `faults` of all workers, from those of the workers hosted here.
    """
    prints = [[_fingerprint(name, buffer) for name, buffer in own.items()] for own in workers]
    heads = [[len(p), _fingerprint(str(p)), own] for p, own in zip(prints, faults, strict=True)]
    counts, digests, everywhere = zip(*_gathered(heads, world, device), strict=True)
    if len(set(counts)) > 1:
        raise UserError(
            f"the workers' models have {min(counts)} to {max(counts)} buffers, which have no mean; "
            "register the same on all, or with persistent=False to let each rank keep its own"
        )
    if len(set(digests)) > 1:
        by_buffer = zip(*_gathered(prints, world, device), strict=True)
        found = zip(workers[0].items(), by_buffer, strict=True)
        raise _difference(*next(each for each in found if len(set(each[1])) > 1))
    return list(everywhere)


def _gathered(
    numbers: Sequence[Sequence[int]], world: Collective, device: torch.device
) -> list[list[int]]:
    """The numbers of all workers, from those of the workers hosted here."""
    return world.gather(torch.tensor([numbers], device=device)).wait()[0].tolist()


def _difference(named: tuple[str, Tensor], prints: Sequence[int]) -> UserError:
    name, buffer = named
    usual = Counter(prints).most_common(1)[0][0]
    other = next(worker for worker, own in enumerate(prints) if own != usual)
    what = f"the buffer {name} ({_described(buffer)} here)"
    between = f"between worker {other} and worker {prints.index(usual)}"
    if is_plain(buffer):
        return UserError(
            f"{what} differs in dtype or shape {between}, and so has no mean; give it the same on "
            "all ranks, or register it with persistent=False to let each rank keep its own"
        )
    return UserError(
        f"{what} differs {between}, and only plain dense tensors can be averaged or sent; keep it "
        "equal, make it dense, or register it with persistent=False to let each rank keep its own"
    )


def _described(buffer: Tensor) -> str:
    kind = "" if is_plain(buffer) else f" {type(buffer).__name__} of layout {buffer.layout}"
    return f"{buffer.dtype}{kind}" + ("" if buffer.is_nested else f" {list(buffer.shape)}")


def _fingerprint(name: str, buffer: Tensor | None = None) -> int:
    """A digest of name, dtype and shape, and of the bits if they can't be averaged or sent."""
    tensors = []
    if buffer is not None:
        name += f" {_described(buffer)}"
        tensors = [] if is_plain(buffer) else [buffer]
    digest = digest_of_tensors([(name, torch.empty(0)), *(("", t) for t in tensors)])
    return int.from_bytes(digest[:8], "little", signed=True)


def _means(
    workers: Sequence[Named],
    names: Sequence[str],
    statistics: Sequence[tuple[str, str]],
    kept: _Kept,
    world: Collective,
    device: torch.device,
) -> Named:
    """The means of the named buffers; masks that differ have none and are left out."""
    first = workers[0]
    kinds = {
        name: torch.empty(first[name].shape, dtype=widest(device), device="meta") for name in names
    }
    masks = torch.empty(len(names), dtype=widest(device), device="meta")
    layout = Layout.of([*kinds.items(), (MASKS, masks)])
    rows = layout.rows(len(workers), device)  # [w, b]
    packed = [layout.views(row) for row in rows]
    for views, worker in zip(packed, workers, strict=True):
        for index, name in enumerate(names):
            views[name].copy_(worker[name])
            views[MASKS][index] = _is_mask(views[name])
    statistics = [pair for pair in statistics if set(pair) <= set(names)]
    if statistics:
        means = layout.views(kept.mean(rows.clone(), world))
        for views in packed:
            for mean, variance in statistics:
                views[variance] += (views[mean] - means[mean]).square()
    found = layout.views(kept.mean(rows, world))
    masks = found.pop(MASKS).tolist()
    described = {name for pair in statistics for name in pair}
    return {
        name: value
        for (name, value), share in zip(found.items(), masks, strict=True)
        if share < 1 or name in described or _is_mask(value)
    }


def _is_mask(values: Tensor) -> Tensor:
    """Whether all values are 0 or 1."""
    return (values == values.square()).all()


def _firsts(
    workers: Sequence[Named],
    names: Sequence[str],
    kept: _Kept,
    world: Collective,
    device: torch.device,
) -> Named:
    """The named buffers of the first worker that is kept, gathered as bytes."""
    first = workers[0]
    mine = [torch.cat([bytes_of(own[name]).to(device) for name in names]) for own in workers]
    received = world.gather(torch.stack(mine)[None]).wait()[0, kept.first]
    parts = received.split([first[name].nbytes for name in names])
    return {
        name: part.clone().view(first[name].dtype).view(first[name].shape)
        for name, part in zip(names, parts, strict=True)
    }


def _statistics(model: nn.Module) -> Iterator[tuple[str, str]]:
    """The names of mean and variance of every layer that keeps both."""
    for prefix, module in model.named_modules():
        kept = dict(module.named_buffers(prefix, recurse=False))
        mean, variance = (
            ".".join(filter(None, (prefix, name))) for name in ("running_mean", "running_var")
        )
        if mean in kept and variance in kept and kept[mean].shape == kept[variance].shape:
            yield mean, variance
