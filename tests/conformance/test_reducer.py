"""What every reducer promises, over every way to host the members.

Whoever adds one adds a line to `REDUCERS`.

Shapes: G groups in all · M members of each · n scalars, not always a multiple of M.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.reduce import (
    BFloat16,
    CompressedMean,
    ExactMean,
    Int8,
    MajorityVote,
    OrderedMean,
    PowerSgd,
    Reducer,
    Sign,
    TopK,
)
from localsgd.testing import check_reducer
from localsgd.testing.reducer import CHECKS
from localsgd.wire import InProcess
from tests.distributed.harness import run


@dataclass(frozen=True)
class Kind:
    """A reducer and what it claims.

    Args:
        make: a fresh one.
        exact: gives the mean to rounding; others come close to it.
        ordered: gives the same bits however the members are hosted.
    """

    name: str
    make: Callable[[], Reducer]
    exact: bool = True
    ordered: bool = False


def two_phase_sign() -> Reducer:
    """A function with a name, as it is sent to other processes."""
    return CompressedMean(Sign(), way="two-phase")


REDUCERS = [
    Kind("exact", ExactMean),
    Kind("ordered", OrderedMean, ordered=True),
    # Over every hosting, all compressors are in test_compressor; one stands for them here.
    Kind("sign", two_phase_sign, exact=False, ordered=True),
    Kind("gathered sign", lambda: CompressedMean(Sign(), way="gather"), exact=False),
    Kind("majority", MajorityVote, exact=False),
    Kind("int8", lambda: CompressedMean(Int8(4), way="two-phase"), exact=False),
    Kind("stochastic int8", lambda: CompressedMean(Int8(4, seed=1)), exact=False),
    Kind("top-k", lambda: CompressedMean(TopK(0.5), way="gather"), exact=False),
    Kind("bfloat16", lambda: CompressedMean(BFloat16()), exact=False),
]

HOSTINGS = [("8", 1), ("8", 2), ("8", 4), ("4x2", 2), ("4x2", 4), ("2x4", 4), ("2x2x2", 4)]

every_reducer = pytest.mark.parametrize("kind", REDUCERS, ids=lambda kind: kind.name)
exact_ones = pytest.mark.parametrize(
    "kind", [kind for kind in REDUCERS if kind.exact], ids=lambda kind: kind.name
)
ordered_ones = pytest.mark.parametrize(
    "kind", [kind for kind in REDUCERS if kind.ordered], ids=lambda kind: kind.name
)
every_hosting = pytest.mark.parametrize(("topology", "processes"), HOSTINGS)


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)


def summing_to_one(groups: int, members: int) -> Tensor:
    weights = drawn(groups, members, seed=2).abs() + 0.1
    return weights / weights.sum(1, keepdim=True)


def reduced(kind: Kind, x: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean in one process."""
    pending = kind.make().reduce(x.clone(), weights, InProcess(x.shape[1]))
    return pending.wait().clone()


def reduced_at_every_level(
    kind: Kind, topology: Topology, dtype: torch.dtype, n: int, weighted: bool
) -> list[tuple[list[int], Tensor]]:
    """(groups hosted here, their means `[g, n]`) for each level, of members drawn by level."""
    placement = placement_of(topology)
    results, inside = [], 1
    for level, size in enumerate(topology.sizes):
        place_ = placement.hosted_levels[level]
        whole = inside * size
        x, weights = level_data(topology, level, dtype, n)
        groups = sorted({worker // whole for worker in placement.workers})
        members = sorted({worker // inside % size for worker in placement.workers})
        assert (place_.groups, place_.hosted) == (len(groups), len(members))
        mine = x[groups][:, members].clone()
        given = weights[groups][:, members].to(dtype) if weighted else None
        mean = kind.make().reduce(mine, given, place_.collective).wait()
        assert mean.shape == (len(groups), n)
        results.append((groups, mean.clone()))
        inside = whole
    return results


def level_data(topology: Topology, level: int, dtype: torch.dtype, n: int) -> tuple[Tensor, Tensor]:
    members = topology.sizes[level]
    groups = 1
    for size in topology.sizes[level + 1 :]:
        groups *= size
    return drawn(groups, members, n, dtype=dtype, seed=level), summing_to_one(groups, members)


def by_hosting(
    kind: Kind, text: str, processes: int, dtype: torch.dtype, n: int, weighted: bool
) -> list[list[tuple[list[int], Tensor]]]:
    arguments = (kind, Topology.parse(text), dtype, n, weighted)
    if processes == 1:
        return [reduced_at_every_level(*arguments)]
    return run(processes, reduced_at_every_level, *arguments)


@exact_ones
@pytest.mark.parametrize(("g", "m", "n"), [(1, 1, 5), (1, 2, 8), (3, 4, 7), (2, 5, 3), (1, 8, 1)])
def test_is_the_mean(kind: Kind, g: int, m: int, n: int) -> None:
    x = drawn(g, m, n)
    torch.testing.assert_close(reduced(kind, x), x.mean(1), rtol=1e-14, atol=1e-14)


@exact_ones
@pytest.mark.parametrize(("g", "m", "n"), [(1, 1, 5), (3, 4, 7), (2, 5, 3)])
def test_weighs(kind: Kind, g: int, m: int, n: int) -> None:
    x, weights = drawn(g, m, n), summing_to_one(g, m)
    expected = (weights.unsqueeze(-1) * x).sum(1)
    torch.testing.assert_close(reduced(kind, x, weights), expected, rtol=1e-14, atol=1e-14)


@every_reducer
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(kind: Kind, check: Callable[[Reducer], None]) -> None:
    check(kind.make())


def test_power_sgd_conforms() -> None:
    check_reducer(PowerSgd(mean=OrderedMean()))


@every_reducer
def test_linear_is_true_to_its_word(kind: Kind) -> None:
    x, y = drawn(2, 4, 7), drawn(2, 4, 7, seed=9)
    together = reduced(kind, 2 * x - 3 * y)
    apart = 2 * reduced(kind, x) - 3 * reduced(kind, y)
    linear = bool(torch.allclose(together, apart, rtol=1e-13, atol=1e-13))
    assert linear is kind.make().linear


@exact_ones
@every_hosting
def test_is_the_mean_over_every_hosting(kind: Kind, topology: str, processes: int) -> None:
    for weighted in (False, True):
        results = by_hosting(kind, topology, processes, torch.float64, 48, weighted)
        for result in results:
            for level, (groups, mean) in enumerate(result):
                x, weights = level_data(Topology.parse(topology), level, torch.float64, 48)
                expected = (weights.unsqueeze(-1) * x).sum(1) if weighted else x.mean(1)
                torch.testing.assert_close(mean, expected[groups], rtol=1e-14, atol=1e-14)


@ordered_ones
@every_hosting
def test_ordered_bits_are_equal_over_every_hosting(
    kind: Kind, topology: str, processes: int
) -> None:
    for weighted in (False, True):
        here = by_hosting(kind, topology, 1, torch.float32, 48, weighted)[0]
        for result in by_hosting(kind, topology, processes, torch.float32, 48, weighted):
            for (groups, mean), (_, expected) in zip(result, here, strict=True):
                assert torch.equal(mean, expected[groups])
