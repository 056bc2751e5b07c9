"""Scale-free figures: known on a quadratic, and unchanged when a net is rescaled."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from localsgd.errors import UserError
from localsgd.landscape import Objective, in_batches, sharpness, worst_rise
from tests.landscape.cases import assert_same_state, batch_norm_net, objective, samples, state_of
from tests.landscape.test_surface import DATA, Bowl, height


def test_all_figures_of_a_bowl() -> None:
    """H = diag(2, 4, 6), ||w|| = 5; the three weights are one filter."""
    found = sharpness(Objective(Bowl(3.0, 0.0, 4.0), height, DATA), radius=0.1)
    assert found.largest == pytest.approx(6)
    assert found.times_norm == pytest.approx(150)
    assert found.filter_wise == pytest.approx(150)
    # max L(w + v) over ||v|| <= 0.5: both balls are the same, 0.1 ||w|| = 0.1 sqrt(1) ||w||.
    assert found.worst_rise == pytest.approx(found.filter_worst_rise)
    assert found.worst_rise == pytest.approx(
        brute_force(torch.tensor([3.0, 0.0, 4.0]), 0.5), rel=1e-3
    )


class Slopes(nn.Module):
    """Four filters of one weight each, all 1; the loss is their squares' sum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight


def test_the_ball_by_filters_grows_with_the_root_of_their_number() -> None:
    """||v|| <= r sqrt(4) about ||w|| = 2: the loss rises to (2 + 2 r)², r = 0.1."""
    found = sharpness(Objective(Slopes(), lambda w, y: w.square().sum(), DATA), radius=0.1)
    assert found.filter_worst_rise == pytest.approx(0.84, rel=1e-12)
    assert found.worst_rise == pytest.approx(0.84, rel=1e-12)  # r ||w|| is the same


def brute_force(w: torch.Tensor, radius: float) -> float:
    angles = torch.linspace(0, 2 * torch.pi, 20001, dtype=torch.float64)
    v = radius * torch.stack([angles.cos(), 0 * angles, angles.sin()], 1)
    scale = torch.tensor([1.0, 2.0, 3.0]).double()
    return float((((w + v) ** 2 - w**2) * scale).sum(1).max())


def test_more_ascent_never_gives_less_and_zero_gives_zero() -> None:
    subject = objective()
    rises = [worst_rise(subject, 0.5, steps=steps) for steps in (1, 3, 10)]
    assert rises == sorted(rises)
    assert rises[0] > 0
    assert worst_rise(subject, 0.0) == 0


def test_one_step_is_sam_s() -> None:
    subject = objective()
    g = subject.gradient()
    there = subject.score(subject.weights + 0.3 * g / g.norm()).loss
    assert worst_rise(subject, 0.3, steps=1) == pytest.approx(there - subject.score().loss)


def relu_net() -> nn.Module:
    torch.manual_seed(2)
    layers = (nn.Linear(36, 6, bias=False), nn.ReLU(), nn.Linear(6, 4, bias=False))
    return nn.Sequential(nn.Flatten(), *layers).double()


def rescaled(net: nn.Module) -> nn.Module:
    """Dinh et al.'s: the same function, filters up by 4 and the next layer down."""
    other = copy.deepcopy(net)
    with torch.no_grad():
        other[1].weight.mul_(4)
        other[3].weight.div_(4)
    return other


def test_rescaling_changes_the_plain_figures_but_not_those_by_filter() -> None:
    one, two = (
        sharpness(Objective(net, nn.CrossEntropyLoss(), in_batches(*samples(), 7)), tolerance=1e-6)
        for net in (relu_net(), rescaled(relu_net()))
    )
    assert two.largest > 3 * one.largest
    assert two.filter_wise == pytest.approx(one.filter_wise, rel=1e-8)
    assert two.filter_worst_rise == pytest.approx(one.filter_worst_rise, rel=1e-8)


def test_the_model_is_left_alone() -> None:
    net = batch_norm_net()
    before = state_of(net)
    sharpness(objective(net), ascent_steps=2)
    assert_same_state(before, state_of(net))


def test_a_negative_ball() -> None:
    with pytest.raises(UserError, match="radius -1"):
        worst_rise(objective(), -1)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_ball_in_which_the_loss_breaks_down(value: float) -> None:
    def cliff(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return z[0, 0].where(z[0, 0] < 1.2, value)

    found = worst_rise(Objective(Bowl(1.0, 0.0, 0.0), cliff, DATA), 0.5)
    assert not math.isfinite(found)


def test_its_eigenvalues_say_how_far_they_converged() -> None:
    net = batch_norm_net()
    loose = sharpness(objective(net), tolerance=0.3)
    tight = sharpness(objective(net), tolerance=1e-8)
    assert tight.residual < 1e-8
    assert loose.residual > tight.residual
    assert sharpness(objective(net), tolerance=0.3, seed=1).largest != loose.largest
