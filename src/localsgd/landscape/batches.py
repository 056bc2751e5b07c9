"""Data as this package reads it: batches of (x, y), the same ones on every pass.

`data` is an iterable of (x, y) pairs that can be read again and again (a list, a `DataLoader`), or
a callable that gives one. `x` is a tensor, or a tuple or mapping of arguments for the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from localsgd.errors import UserError

Pairs: TypeAlias = Iterable[tuple[Any, Any]]
Data: TypeAlias = Pairs | Callable[[], Pairs]


class Batch(NamedTuple):
    """One batch: `index` is its position in the whole data set, `samples` its weight."""

    index: int
    x: Any
    y: Any
    samples: int


def count_samples(x: Any, y: Any) -> int:
    """The number of samples of a batch: the first dimension of `y`, or of `x` if `y` has none."""
    for value in (y, x):
        if isinstance(value, Tensor) and value.ndim:
            return value.shape[0]
    raise UserError(
        f"a batch of ({type(x).__name__}, {type(y).__name__}) has no first dimension to count "
        "samples by; give (x, y) with tensors of shape [samples, ...], or samples_of=..."
    )


def as_pairs(data: Data) -> Pairs:
    """The pairs of `data`, called first if it is a callable that isn't iterable itself."""
    if callable(data) and not isinstance(data, Iterable):
        return data()
    if isinstance(data, Iterator):
        raise UserError(
            "the data are an iterator, which can be read only once, but every product reads them; "
            "give a list, a DataLoader or a function that returns a fresh iterator"
        )
    if not isinstance(data, Iterable):
        raise UserError(
            f"the data are of type {type(data).__name__}; give an iterable of (x, y) batches, "
            "or a function that returns one"
        )
    return data


def batches(
    data: Data,
    *,
    rank: int = 0,
    world: int = 1,
    like: Tensor | None = None,
    samples_of: Callable[[Any, Any], int] = count_samples,
    skip: int = 0,
) -> Iterator[Batch]:
    """The batches of process `rank` of `world` (every `world`-th), on the device of `like`.

    Floating-point inputs take the dtype of `like`, so float64 models read float32 data.
    The first `skip` batches of this process are passed over.
    """
    for index, pair in enumerate(as_pairs(data)):
        if index % world != rank or index // world < skip:
            continue
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UserError(
                f"batch {index} of the data is of type {type(pair).__name__}, not a pair (x, y)"
            )
        x, y = (moved(part, like) for part in pair)
        yield Batch(index, x, y, samples_of(x, y))


def moved(value: Any, like: Tensor | None) -> Any:
    """`value` with its tensors on the device (and, if floating, in the dtype) of `like`."""
    if like is None:
        return value
    if isinstance(value, Tensor):
        dtype = like.dtype if value.is_floating_point() else None
        return value.to(device=like.device, dtype=dtype, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: moved(part, like) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return tuple(moved(part, like) for part in value)
    return value


def call_arguments(x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`x` as positional and keyword arguments of a model."""
    if isinstance(x, Mapping):
        return (), dict(x)
    if isinstance(x, tuple):
        return x, {}
    return (x,), {}


def in_batches(x: Tensor, y: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """Two tensors of [samples, ...] as a list of batches of `size`; the last may be shorter."""
    if size < 1 or x.shape[0] != y.shape[0]:
        raise UserError(
            f"cannot cut {x.shape[0]} inputs and {y.shape[0]} targets into batches of {size}; "
            "give as many inputs as targets, and a size of 1 or more"
        )
    return list(zip(torch.split(x, size), torch.split(y, size), strict=True))
