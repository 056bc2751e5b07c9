"""The checks of compressors and reducers find what they are for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from localsgd.reduce import (
    CompressedMean,
    Compressor,
    ExactMean,
    Extents,
    Int8,
    OrderedMean,
    Reducer,
    Sign,
    TopK,
    check_dtype,
    put,
    scale_dtype,
    take,
)
from localsgd.reduce.int8 import Int8Codec
from localsgd.testing import (
    check_compressor,
    check_reducer,
)
from localsgd.testing import compressor as compressor_checks
from localsgd.wire import Collective, InProcess, Pending
from tests.testing.failing import fails

# Compressors


@dataclass(frozen=True)
class Broken(Compressor):
    """Int8 with methods of its codec replaced."""

    methods: dict[str, Any] = field(default_factory=dict)
    says_unbiased: bool = False

    @property
    def unbiased(self) -> bool:
        return self.says_unbiased

    def codec(self, fragments: Extents, dtype: torch.dtype) -> Int8Codec:
        codec = Int8(16).codec(fragments, dtype)
        codec.__class__ = type("BrokenCodec", (Int8Codec,), self.methods)
        return codec


def adds_one(self: Any, payload: Tensor, out: Tensor, factor: float = 1.0) -> None:
    Int8Codec.add(self, payload, out, factor)
    out += factor


def writes(self: Any, x: Tensor, payload: Tensor, draw: Any = None) -> None:
    Int8Codec.encode(self, x, payload, draw)
    x.zero_()


def small_are_lost(self: Any, payload: Tensor, out: Tensor, factor: float = 1.0) -> None:
    """In half precision, numbers below a sixteenth."""
    found = torch.zeros_like(out)
    Int8Codec.add(self, payload, found, factor)
    out += found * (found.abs() > 1 / 16) if out.dtype == torch.bfloat16 else found


def keeps_twice(self: Any, x: Tensor, error: Tensor, payload: Tensor) -> None:
    self.encode(error.add_(x), payload)


@dataclass(frozen=True)
class Few(Compressor):
    """A fiftieth of the scalars at random, times `factor` of what would make them unbiased."""

    factor: float
    seed: int | None = 0
    unbiased = True

    def codec(self, fragments: Extents, dtype: torch.dtype) -> FewCodec:
        check_dtype(dtype)
        return FewCodec(fragments, scale_dtype(dtype), self.factor)


class FewCodec:
    """Sends all scalars, zeros included."""

    def __init__(self, fragments: Extents, dtype: torch.dtype, factor: float) -> None:
        self.fragments, self.dtype, self.factor = fragments, dtype, factor
        self.size = fragments.length * dtype.itemsize

    def encode(self, x: Tensor, payload: Tensor, draw: torch.Generator | None = None) -> None:
        draw = draw or torch.Generator().manual_seed(0)
        kept = torch.rand(len(x), generator=draw, dtype=torch.float64) < 0.02
        put(x.to(self.dtype) * kept * (self.factor / 0.02), payload)

    def add(self, payload: Tensor, out: Tensor, factor: float = 1.0) -> None:
        out += (factor * take(payload, self.dtype)).to(out.dtype)

    def fault(self, payload: Tensor) -> str | None:
        finite = take(payload, self.dtype).isfinite().all()
        return None if finite else self.fragments.names(0, self.fragments.length)


def test_few_scalars_at_random_are_unbiased_if_they_are_large_enough() -> None:
    found = compressor_checks._is_unbiased_if_it_says_so
    found(Few(1.0))
    fails(lambda: found(Few(0.5)), "says unbiased, but the mean error of")


@pytest.mark.parametrize(
    ("compressor", "reason"),
    [
        (Broken({"size": 200}), "a payload of|must match"),
        (Broken({"fault": lambda self, payload: None}), "does not find nan"),
        (Broken({"add": adds_one}), "stay zero|zeros|factor"),
        (Broken({"encode": writes}), "writes into the vector"),
        (Broken({"keep": keeps_twice}), r"keep\(\) keeps other bits"),
        (Broken({"read": lambda self, payloads, out: self.add(payloads[0], out.zero_())}), "read"),
        (Broken(says_unbiased=True), "says unbiased, but"),
        (Broken({"add": small_are_lost}), "bias of a bfloat16 row stands for something else"),
    ],
)
def test_compressors(compressor: Compressor, reason: str) -> None:
    with pytest.raises((AssertionError, RuntimeError), match=reason):
        check_compressor(compressor)


# Reducers


class Halves(ExactMean):
    """Says linear, but gives half of a model."""

    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        return super().reduce(update.div_(2), weights, collective)


class Hosted(ExactMean):
    """Averages the members hosted here alone."""

    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        return super().reduce(update, weights, InProcess(update.shape[1]))


class Hides(ExactMean):
    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        return super().reduce(update.nan_to_num_(), weights, collective)


class Says(OrderedMean):
    """Says that it only reads, but weighs in place."""

    only_reads = True

    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        return (
            super()
            .reduce(update.mul_(1.0), weights, collective)
            .then(lambda mean: collective.gather(update.mul_(2.0)).then(lambda _: mean / 2).wait())
        )


class Forgets(CompressedMean):
    """Saves nothing of its memory."""

    def bound(self, layout: Any) -> Forgets:
        return Forgets(self.compressor, layout=layout)

    def state(self) -> dict[str, Any]:
        return {"feedback": True, "syncs": 0}


class Deaf(ExactMean):
    """Takes no weights."""

    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        return super().reduce(update, None, collective)


class Doubles(ExactMean):
    """Takes weights twice."""

    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        return super().reduce(update, None if weights is None else weights * 2, collective)


class AddsRounded(CompressedMean):
    """A sum of what was rounded by chance."""

    def bound(self, layout: Any) -> AddsRounded:
        return AddsRounded(self.compressor, feedback=self.feedback, layout=layout)

    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        mean = super().reduce(update, weights, collective)
        return mean.then(lambda found: found * collective.members)


class Grows(ExactMean):
    """Divides by the root of M alone."""

    linear = False

    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        mean = super().reduce(update, weights, collective)
        return mean.then(lambda found: found * collective.members**0.5)


class Levels(CompressedMean):
    """Takes all weights above 0 as equal."""

    def bound(self, layout: Any) -> Levels:
        return Levels(self.compressor, layout=layout)

    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        if weights is not None:
            weights = (weights > 0).to(weights.dtype)
            weights /= weights.sum(1, keepdim=True)
        return super().reduce(update, weights, collective)


class Rounds(ExactMean):
    """Weighs what it has received, in half precision."""

    linear = only_reads = members_may_change = False

    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        if weights is None:
            weights = torch.full(update.shape[:2], 1 / collective.members)
        weights = collective.gather(weights.to(update.dtype)).wait()
        rows = collective.gather(update.bfloat16()).wait().to(update.dtype)
        return Pending.done((weights.unsqueeze(-1) * rows).sum(1))


@pytest.mark.parametrize(
    "reducer",
    [Rounds(), *(CompressedMean(Few(1.0, seed), feedback=False) for seed in range(4))],
)
def test_reducers_that_round_or_draw_are_fine(reducer: Reducer) -> None:
    check_reducer(reducer)


class Adds(ExactMean):
    """A sum, and no mean."""

    linear = False

    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        mean = super().reduce(update, weights, collective)
        return mean.then(lambda found: found * collective.members)


class Tells:
    """No Reducer: it has no part()."""

    linear = only_reads = False


@pytest.mark.parametrize(
    ("reducer", "reason"),
    [
        (Halves(), "the mean of equal models is another"),
        (Hosted(), "members apart differ from 4 together"),
        (Hides(), "becomes a finite mean"),
        (Says(), "only_reads"),
        (Forgets(TopK(0.2)), "goes elsewhere"),
        (Deaf(), "unequal weights are not those"),
        (Doubles(), "weights of 1/M differ"),
        (Adds(), "the mean of 2 equal updates is 2 times as large"),
        (AddsRounded(Int8(16, seed=0)), "the mean of 2 equal updates is"),
        (AddsRounded(Int8(16, seed=0), feedback=False), "the mean of 2 equal updates is"),
        (Grows(), "the mean of 4 equal updates is 2 times as large"),
        (Levels(Sign()), "unequal weights are not those"),
        (Tells(), "lacks a part of Reducer"),
    ],
)
def test_reducers(reducer: Any, reason: str) -> None:
    fails(lambda: check_reducer(reducer), reason)
