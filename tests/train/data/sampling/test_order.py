"""Who takes which samples: disjoint parts, whole epochs, the same wherever workers are hosted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.basics.seeds import generator_for, seed_for
from localsgd.errors import UserError
from localsgd.train.data.sampling.order import Order
from tests.distributed.harness import run


@given(st.integers(1, 7), st.integers(1, 5), st.integers(0, 30), st.integers(0, 3))
def test_parts_are_disjoint_and_cover_all_but_a_remainder(
    workers: int, batch: int, more: int, epoch: int
) -> None:
    samples = workers * batch + more
    parts = Order(samples, workers, batch, seed=1).partition(epoch)
    assert parts.shape == (workers, samples // workers)
    assert parts.unique().numel() == parts.numel()
    assert parts.numel() == samples - samples % workers
    assert parts.min() >= 0
    assert parts.max() < samples


def test_every_epoch_is_dealt_anew_among_all() -> None:
    order = Order(103, 4, 5, seed=1)
    first, second = order.partition(0), order.partition(1)
    assert not torch.equal(first, second)
    assert set(first[0].tolist()) != set(second[0].tolist())
    assert set(first.flatten().tolist()) != set(second.flatten().tolist()), "the same left out"


def test_a_seed_gives_one_order() -> None:
    one, same, other = Order(50, 2, 5, 1), Order(50, 2, 5, 1), Order(50, 2, 5, 2)
    assert torch.equal(one.partition(3), same.partition(3))
    assert not torch.equal(one.partition(3), other.partition(3))
    assert one == same != other


@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 9))
def test_a_worker_reads_its_parts_one_after_the_other(workers: int, batch: int, more: int) -> None:
    order = Order(workers * batch + more, workers, batch, seed=3)
    for worker in range(workers):
        read = torch.cat([order.indices(worker, step) for step in range(4 * order.part)])
        parts = torch.cat([order.partition(epoch)[worker] for epoch in range(4 * batch)])
        assert torch.equal(read, parts)


def test_a_batch_may_end_one_epoch_and_begin_the_next() -> None:
    order = Order(10, 2, 3, seed=0)  # parts of 5
    last, first = order.partition(0)[1, 3:], order.partition(1)[1, :1]
    assert torch.equal(order.indices(1, 1), torch.cat([last, first]))


def test_nothing_is_remembered() -> None:
    order = Order(50, 2, 5, 1)
    forwards = [order.indices(1, step) for step in range(30)]
    assert all(torch.equal(order.indices(1, step), forwards[step]) for step in reversed(range(30)))
    fresh = Order(50, 2, 5, 1)
    assert torch.equal(fresh.indices(1, 29), forwards[29])


def test_few_epochs_are_kept_in_memory() -> None:
    order = Order(50, 2, 5, 1)
    for step in range(100):
        order.indices(0, step)
    assert len(order._shuffled) <= 2


def samples_by_worker(workers: int) -> dict[int, list[list[int]]]:
    order = Order(50, workers, 3, seed=5)
    hosted = placement_of(Topology.parse(workers)).workers
    return {
        worker: [order.indices(worker, step).tolist() for step in range(12)] for worker in hosted
    }


@pytest.mark.parametrize("processes", [2, 4])
def test_a_worker_sees_the_same_samples_wherever_it_is_hosted(processes: int) -> None:
    together: dict[int, list[list[int]]] = {}
    for part in run(processes, samples_by_worker, 4):
        together |= part
    assert together == samples_by_worker(4)


def test_an_epoch_has_a_fraction_of_steps() -> None:
    assert Order(103, 4, 5, seed=1).steps_per_epoch == 103 / 20


def test_too_few_samples_are_refused_in_one_line() -> None:
    with pytest.raises(UserError) as refused:
        Order(39, 4, 10, seed=1)
    assert str(refused.value) == (
        "39 training samples: too few for 4 workers x batch 10 = 40 samples a step; "
        "use fewer workers or a smaller batch"
    )
    Order(40, 4, 10, seed=1)


def test_seeds_differ_by_purpose_and_every_number() -> None:
    seeds = [
        seed_for(1, "order", 2, 3),
        seed_for(2, "order", 2, 3),
        seed_for(1, "other", 2, 3),
        seed_for(1, "order", 3, 3),
        seed_for(1, "order", 2, 4),
        seed_for(1, "order", 23),
        seed_for(12, "order", 3),
        seed_for(1, "order"),
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_stay_what_they_are() -> None:
    """Another would change every run there is."""
    assert seed_for(0, "order", 0) == 1829853113658518448
    assert generator_for(0, "order", 0).initial_seed() == 1829853113658518448
