"""Gradient noise against every possible batch of a tiny data set."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch.nn import functional as F

from localsgd.errors import UserError
from localsgd.landscape import gradient_noise
from tests.distributed.harness import run
from tests.landscape.cases import assert_same_state, batch_norm_net, objective, samples, state_of


def per_sample_gradients(count: int) -> torch.Tensor:
    net = batch_norm_net().eval()
    x, y = samples()
    rows = []
    for i in range(count):
        net.zero_grad()
        F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]).backward()
        rows.append(torch.cat([p.grad.reshape(-1) for p in net.parameters()]))
    return torch.stack(rows)


def first(count: int, batch: int = 4):
    subject = objective()
    x, y = samples()
    subject.data = list(zip(x[:count].split(batch), y[:count].split(batch), strict=True))
    return subject


@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_traces_are_those_of_single_samples(chunk: int) -> None:
    rows = per_sample_gradients(30)
    found = gradient_noise(objective(), chunk=chunk)
    centred = (rows - rows.mean(0)).square().sum(1).mean()
    assert found.samples == 30
    assert found.uncentred == pytest.approx(float(rows.square().sum(1).mean()), rel=1e-11)
    assert found.centred == pytest.approx(float(centred), rel=1e-11)
    assert found.gradient == pytest.approx(float(rows.mean(0).square().sum()), rel=1e-11)


def test_the_noise_of_a_batch_is_the_mean_over_all_possible_ones() -> None:
    rows = per_sample_gradients(7)
    found = gradient_noise(first(7))
    for batch in (1, 2, 3, 7):
        every = torch.stack([rows[list(c)].mean(0) for c in combinations(range(7), batch)])
        exact = float((every - rows.mean(0)).square().sum(1).mean())
        assert found.of_batch(batch) == pytest.approx(exact, rel=1e-10, abs=1e-14)


def test_a_worker_s_noise_is_more_than_k_times_the_averaged_one_s() -> None:
    """(N - B) / (N - K B) K: K itself only while K B is small against N."""
    found = gradient_noise(objective()).step(local_batch=2, workers=5)
    assert found.ratio == pytest.approx(5 * (30 - 2) / (30 - 10))
    whole = gradient_noise(objective()).step(local_batch=6, workers=5)
    assert (whole.averaged, whole.ratio) == (0, None)


def test_disjoint_workers_average_to_the_large_batch() -> None:
    """Over all ways to give 2 workers 2 of 6 samples each: the mean's noise is that of 4."""
    rows = per_sample_gradients(6)
    means = []
    for mine in combinations(range(6), 2):
        for yours in combinations(sorted(set(range(6)) - set(mine)), 2):
            means.append((rows[list(mine)].mean(0) + rows[list(yours)].mean(0)) / 2)
    exact = float((torch.stack(means) - rows.mean(0)).square().sum(1).mean())
    assert gradient_noise(first(6)).step(2, 2).averaged == pytest.approx(exact, rel=1e-10)


def test_the_paper_s_formula_is_uncentred() -> None:
    found = gradient_noise(objective())
    assert found.in_paper(5) == pytest.approx((1 / 5 - 1 / 30) * found.uncentred)
    assert found.in_paper(5) > found.of_batch(5)


def _in_a_group() -> tuple[float, float, int]:
    import torch.distributed as dist

    found = gradient_noise(objective(group=dist.group.WORLD))
    return found.uncentred, found.centred, found.samples


def test_many_processes_are_one() -> None:
    expected = gradient_noise(objective())
    for uncentred, centred, count in run(2, _in_a_group):
        assert uncentred == pytest.approx(expected.uncentred, rel=1e-12)
        assert centred == pytest.approx(expected.centred, rel=1e-11)
        assert count == 30


def test_the_model_is_left_alone() -> None:
    net = batch_norm_net()
    before = state_of(net)
    gradient_noise(objective(net))
    assert_same_state(before, state_of(net))


def test_batches_that_do_not_fit() -> None:
    with pytest.raises(UserError, match=r"batch of 32 .* from 30"):
        gradient_noise(objective()).step(8, 4)
