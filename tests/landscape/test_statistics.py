"""Batch-norm statistics: averaged with the between-worker term, and measured over data."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from localsgd.errors import UserError
from localsgd.landscape import averaged, estimated, in_batches, kept
from localsgd.landscape.statistics import interpolated
from tests.distributed.harness import run
from tests.landscape.cases import assert_same_state, batch_norm_net, samples, state_of


def one_layer() -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(36, 4)).double()


def test_kept_are_copies() -> None:
    net = batch_norm_net()
    before = kept(net)
    net[1].running_mean.add_(1)
    assert not torch.equal(before.buffers["1.running_mean"], net[1].running_mean)


@pytest.mark.parametrize("batch", [2, 7, 30])
def test_the_first_layer_s_are_those_of_all_values_whatever_the_batches(batch: int) -> None:
    x, y = samples()
    found = estimated(one_layer(), in_batches(x, y, batch)).buffers
    assert float(found["0.running_mean"]) == pytest.approx(float(x.mean()), rel=1e-12)
    assert float(found["0.running_var"]) == pytest.approx(float(x.var()), rel=1e-12)


def test_from_one_batch_they_are_what_torch_itself_measures() -> None:
    """With momentum 1 one pass in train mode leaves exactly that batch's statistics."""
    x, y = samples()
    net = batch_norm_net()
    found = estimated(net, [(x, y)]).buffers
    theirs = copy.deepcopy(net).train()
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    theirs(x)
    for name in ("1.running_mean", "1.running_var", "4.running_mean", "4.running_var"):
        torch.testing.assert_close(found[name], theirs.state_dict()[name], rtol=1e-12, atol=0)


def test_nothing_is_dropped_out_before_the_layers_that_are_measured() -> None:
    x, y = samples()
    net = nn.Sequential(nn.Dropout(0.5), *one_layer()).double().train()
    found = estimated(net, in_batches(x, y, 7)).buffers
    assert float(found["1.running_mean"]) == pytest.approx(float(x.mean()), rel=1e-12)
    assert float(found["1.running_var"]) == pytest.approx(float(x.var()), rel=1e-12)
    assert [module.training for module in net] == [True] * 4


def test_at_other_weights() -> None:
    x, y = samples()
    one, two = batch_norm_net(), batch_norm_net(seed=8)
    there = estimated(one, [(x, y)], weights=dict(two.named_parameters())).buffers
    expected = estimated(two, [(x, y)]).buffers
    assert torch.equal(there["4.running_var"], expected["4.running_var"])
    assert not torch.equal(
        there["4.running_var"], estimated(one, [(x, y)]).buffers["4.running_var"]
    )


def test_averaged_are_those_of_the_workers_values_together() -> None:
    """Two workers that saw equally many values: their mixture's mean and variance."""
    a, b = one_layer(), one_layer()
    x, _ = samples()
    for net, part, place in ((a, x[:15], 0.0), (b, x[15:], 2.0)):
        net[0].running_mean.fill_(float((part + place).mean()))
        net[0].running_var.fill_(float((part + place).var(correction=0)))
    mixture = torch.cat([x[:15], x[15:] + 2])
    found = averaged([a, b]).buffers
    assert float(found["0.running_mean"]) == pytest.approx(float(mixture.mean()))
    assert float(found["0.running_var"]) == pytest.approx(float(mixture.var(correction=0)))


def test_averaging_copies_changes_nothing() -> None:
    net = batch_norm_net()
    for name, value in averaged([net, net, net]).buffers.items():
        torch.testing.assert_close(value, net.state_dict()[name], rtol=1e-12, atol=1e-15)


def test_the_model_is_left_alone() -> None:
    net = batch_norm_net()
    net[4].eval()
    before = state_of(net)
    estimated(net, in_batches(*samples(), 7))
    averaged([net, net])
    assert_same_state(before, state_of(net))


def _in_a_group() -> dict[str, torch.Tensor]:
    import torch.distributed as dist

    data = in_batches(*samples(), 7)
    return dict(estimated(batch_norm_net(), data, group=dist.group.WORLD).buffers)


def test_many_processes_are_one() -> None:
    expected = estimated(batch_norm_net(), in_batches(*samples(), 7)).buffers
    for result in run(2, _in_a_group):
        for name, value in expected.items():
            torch.testing.assert_close(result[name], value, rtol=1e-12, atol=1e-14)


def test_without_batch_norm_there_is_nothing_to_measure() -> None:
    assert estimated(nn.Linear(2, 2), []).buffers == {}


@pytest.mark.parametrize(
    ("data", "match"),
    [([], "empty"), ([(torch.ones(1, 1, 1, 1), torch.ones(1).long())], "more than 1 value")],
)
def test_data_that_will_not_do(data: list, match: str) -> None:
    with pytest.raises(UserError, match=match):
        estimated(nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(1, 2)), data)


def test_averaging_far_from_zero_loses_no_variance() -> None:
    nets = [one_layer().float(), one_layer().float()]
    for net, mean in zip(nets, (1e5, 1e5 + 1), strict=True):
        net[0].running_mean.fill_(mean)
        net[0].running_var.fill_(1.0)
    assert float(averaged(nets).buffers["0.running_var"]) == pytest.approx(1.25)


@pytest.mark.parametrize("position", [-0.5, 0.0, 0.25, 1.0, 1.5])
def test_variances_beyond_the_ends_of_a_line_stay_what_they_are_there(position: float) -> None:
    first, second = one_layer(), one_layer()
    for net, mean, variance in ((first, 0.0, 0.1), (second, 2.0, 1.0)):
        net[0].running_mean.fill_(mean)
        net[0].running_var.fill_(variance)
    found = interpolated(kept(first), kept(second), position).buffers
    assert float(found["0.running_mean"]) == pytest.approx(2 * position)
    within = min(max(position, 0), 1)
    assert float(found["0.running_var"]) == pytest.approx(0.1 + 0.9 * within)
