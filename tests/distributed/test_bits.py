"""The same bits however workers are hosted, where members are added in their order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from localsgd.reduce import ExactMean, OrderedMean
from localsgd.schedule.fixed import every, post_local
from tests.cases import Case, carried_out, close, distance, same_bits

TREES = {
    "4x2": (post_local(2, after=20), every(2)),
    "2x2x2": (post_local(2, after=20), every(2), post_local(3, after=30)),
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def long_case(topology: str, dtype: str) -> Case:
    """Hierarchical post-local SGD for 50 steps, with batch norm."""
    return Case(
        topology,
        TREES[topology],
        steps=50,
        net="conv",
        dtype=DTYPES[dtype],
        momentum=0.9,
        nesterov=True,
        weight_decay=0.01,
        reducer=OrderedMean,
    )


@pytest.mark.parametrize(("topology", "dtype"), [("4x2", "float32"), ("2x2x2", "float64")])
@pytest.mark.parametrize("processes", [2, 8])
def test_ordered_means_give_the_same_bits_however_workers_are_hosted(
    topology: str, dtype: str, processes: int
) -> None:
    case = long_case(topology, dtype)
    here = carried_out(case)
    assert distance(here, carried_out(replace(case, steps=0))) > 0.1
    same_bits(carried_out(case, processes), here)


@pytest.mark.parametrize("topology", TREES)
@pytest.mark.parametrize("average", ["models", "gradients"])
def test_four_processes_give_these_bits_too(topology: str, average: str) -> None:
    case = replace(long_case(topology, "float32"), average=average, steps=24)
    same_bits(carried_out(case, 4), carried_out(case))


@pytest.mark.parametrize("topology", TREES)
@pytest.mark.parametrize("processes", [2, 4])
def test_exact_means_differ_by_rounding_alone(topology: str, processes: int) -> None:
    case = replace(long_case(topology, "float64"), reducer=ExactMean, steps=24)
    close(carried_out(case, processes).params, carried_out(case).params)


def test_ordered_blocks_of_unequal_size() -> None:
    case = replace(long_case("4x2", "float32"), topology="2+1+1", steps=12)
    same_bits(carried_out(case, 4), carried_out(case))
