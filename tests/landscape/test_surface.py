"""Curves, surfaces and planes on a quadratic bowl, whose loss everywhere is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from localsgd.errors import UserError
from localsgd.landscape import Objective, curve, estimated, plane, surface
from localsgd.landscape.plane import frame
from tests.landscape.cases import assert_same_state, batch_norm_net, objective, samples, state_of


class Bowl(nn.Module):
    """Outputs its three weights; with the loss below L(w) = w' diag(1, 2, 3) w."""

    def __init__(self, *values: float):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w + 0 * x


DATA = [(torch.zeros(2, 3), torch.zeros(2)), (torch.zeros(1, 3), torch.zeros(1))]


def height(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (z[0] ** 2 * torch.tensor([1.0, 2.0, 3.0]).double()).sum()


def axis(index: int) -> torch.Tensor:
    return torch.eye(3, dtype=torch.float64)[index]


def test_curve() -> None:
    found = curve(Objective(Bowl(0.0, 1.0, 0.0), height, DATA), axis(1), [-2, -1, 0, 1])
    assert found.losses == pytest.approx([2, 0, 2, 8])
    assert found.record(model="bowl")["loss"] == found.losses


def test_surface_has_rows_by_the_second_direction() -> None:
    told = []
    found = surface(
        Objective(Bowl(0.0, 0.0, 0.0), height, DATA),
        (axis(0), axis(2)),
        [-1, 0, 2],
        [0, 1],
        progress=lambda *p: told.append(p),
    )
    assert found.losses == [pytest.approx([1, 0, 4]), pytest.approx([4, 3, 7])]
    assert told[-1] == ("surface", 6, 6)


def test_statistics_may_follow_the_point() -> None:
    subject = objective()
    net = subject.model
    data = [samples()]
    direction = torch.zeros_like(subject.weights)
    subject.layout.named(direction)["0.weight"].copy_(
        subject.layout.named(subject.weights)["0.weight"]
    )
    subject.layout.named(direction)["0.bias"].copy_(subject.layout.named(subject.weights)["0.bias"])

    def at(point: torch.Tensor):
        return estimated(net, data, weights=subject.layout.named(point))

    # Doubling the layer before a batch norm is undone by its statistics (to its epsilon).
    fixed = curve(subject, direction, [0, 1])
    follows = curve(subject, direction, [0, 1], statistics_at=at)
    assert follows.losses[1] == pytest.approx(follows.losses[0], rel=1e-4)
    assert abs(fixed.losses[1] - fixed.losses[0]) > 0.02


def test_a_loss_that_overflows_is_a_gap() -> None:
    found = curve(Objective(Bowl(1.0, 0.0, 0.0), height, DATA), axis(0), [0, 1e200])
    assert found.record()["loss"] == [pytest.approx(1), None]


def test_plane_goes_through_its_models() -> None:
    models = [Bowl(0.0, 0.0, 0.0), Bowl(2.0, 0.0, 0.0), Bowl(1.0, 3.0, 0.0)]
    weights = [m.w.detach() for m in models]
    axes = frame(weights)
    assert axes.points == ((0, 0), pytest.approx((2, 0)), pytest.approx((1, 3)))
    for point, w in zip(axes.points, weights, strict=True):
        torch.testing.assert_close(axes.at(*point), w)
    found = plane(models, height, DATA, points=3, margin=0.0)
    assert found.surface.first == pytest.approx((0, 1, 2))
    assert found.surface.second == pytest.approx((0, 1.5, 3))
    assert found.surface.losses[2] == pytest.approx([18, 19, 22])


def test_planes_that_are_none() -> None:
    line = [Bowl(0.0, 0.0, 0.0), Bowl(1.0, 1.0, 0.0), Bowl(2.0, 2.0, 0.0)]
    with pytest.raises(UserError, match="one line"):
        plane(line, height, DATA)
    with pytest.raises(UserError, match="same weights"):
        plane([line[0], line[0], line[1]], height, DATA)
    with pytest.raises(UserError, match="2 were given"):
        plane(line[:2], height, DATA)


def test_the_model_is_left_alone() -> None:
    net = batch_norm_net()
    before = state_of(net)
    subject = objective(net)
    curve(subject, subject.weights, [0, 0.5])
    plane([net, batch_norm_net(8), batch_norm_net(9)], subject.loss, [samples()], points=2)
    assert_same_state(before, state_of(net))


def test_an_empty_surface() -> None:
    with pytest.raises(UserError, match="at least one step"):
        surface(Objective(Bowl(0.0, 0.0, 0.0), height, DATA), (axis(0), axis(1)), [])


def test_a_plane_says_that_its_statistics_are_measured() -> None:
    found = plane([Bowl(0.0, 0.0, 0.0), Bowl(2.0, 0.0, 0.0), Bowl(1.0, 3.0, 0.0)], height, DATA)
    assert found.record()["statistics"] == "estimated"
