"""The line between two models: its ends are the models, its barrier the rise over the chord."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from localsgd.errors import UserError
from localsgd.landscape import estimated, in_batches, interpolate
from tests.landscape.cases import assert_same_state, batch_norm_net, objective, samples, state_of
from tests.landscape.test_surface import DATA, Bowl, height

LOSS = nn.CrossEntropyLoss()


def two_nets() -> tuple[nn.Module, nn.Module]:
    return batch_norm_net(), batch_norm_net(seed=8)


def data() -> dict:
    x, y = samples()
    return {"train": in_batches(x[:20], y[:20], 7), "test": in_batches(x[20:], y[20:], 7)}


def test_interpolated_statistics_give_the_models_own_scores_at_the_ends() -> None:
    one, two = two_nets()
    found = interpolate(one, two, LOSS, {"all": [samples()]}, [0.0, 1.0], statistics="interpolated")
    for net, score in zip((one, two), found.scores["all"], strict=True):
        expected = objective(net).score()
        assert score.loss == pytest.approx(expected.loss, rel=1e-12)
        assert score.accuracy == expected.accuracy


def test_estimated_statistics_are_measured_at_every_position() -> None:
    one, two = two_nets()
    found = interpolate(one, two, LOSS, data(), [-0.5, 0.0, 1.0, 1.5])
    assert found.statistics == "estimated"
    for net, index in ((one, 1), (two, 2)):
        statistics = estimated(net, data()["train"])
        for name, pairs in data().items():
            own = objective(net, statistics=statistics)
            own.data = pairs
            assert found.scores[name][index].loss == pytest.approx(own.score().loss, rel=1e-12)


def test_frozen_parameters_are_interpolated_too() -> None:
    one, two = two_nets()
    one.requires_grad_(False)
    one[8].requires_grad_(True)
    found = interpolate(one, two, LOSS, {"all": [samples()]}, [1.0], statistics="interpolated")
    assert found.scores["all"][0].loss == pytest.approx(objective(two).score().loss, rel=1e-12)


def test_a_convex_loss_has_no_barrier() -> None:
    found = interpolate(
        Bowl(1.0, 0.0, 0.0), Bowl(0.0, 1.0, 0.0), height, {"train": DATA}, [0.0, 0.25, 0.5, 1.0]
    )
    losses = [score.loss for score in found.scores["train"]]
    assert losses == pytest.approx([1, 0.6875, 0.75, 2])
    assert found.barrier("train").height == 0
    assert found.barrier("train").connected(0.02)


def test_a_hill_between_two_dips() -> None:
    """L(w) = (w_0^2 - 1)^2 + w_0 has the chord -1 to 1 and rises 1 over it at 0."""

    def hill(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (z[0, 0] ** 2 - 1) ** 2 + z[0, 0]

    found = interpolate(
        Bowl(-1.0, 0.0, 0.0), Bowl(1.0, 0.0, 0.0), hill, {"train": DATA},
        [-0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5],
    )  # fmt: skip
    barrier = found.barrier("train")
    assert (barrier.height, barrier.position) == (pytest.approx(1), 0.5)
    assert not barrier.connected(0.5)
    assert found.record()["barrier"] == {"train": pytest.approx(1)}


def test_error_barrier() -> None:
    one, two = two_nets()
    found = interpolate(one, two, LOSS, data(), [0.0, 0.5, 1.0])
    a, b, c = (score.accuracy for score in found.scores["test"])
    expected = max(0.0, (1 - b) - ((1 - a) + (1 - c)) / 2)
    assert found.barrier("test", "error").height == pytest.approx(expected)


def test_the_models_are_left_alone() -> None:
    one, two = two_nets()
    before = state_of(one), state_of(two)
    interpolate(one, two, LOSS, data(), [0.0, 0.5])
    assert_same_state(before[0], state_of(one))
    assert_same_state(before[1], state_of(two))


def test_what_cannot_be_interpolated() -> None:
    one, _ = two_nets()
    wider = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).double()
    with pytest.raises(UserError, match=r"'0.weight' is of shape \[4, 1, 3, 3\] .* absent"):
        interpolate(one, wider, LOSS, data(), [0.0])
    with pytest.raises(UserError, match="none is called 'train'"):
        interpolate(one, one, LOSS, {"test": [samples()]}, [0.0])
    found = interpolate(one, one, LOSS, data(), [0.0, 0.5])
    with pytest.raises(UserError, match="position 1"):
        found.barrier("train")


def test_a_line_that_breaks_down_connects_nothing() -> None:
    def gap(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return z[0, 0].abs().sub(0.5).sqrt()  # NaN near the middle

    ends = Bowl(-1.0, 0.0, 0.0), Bowl(1.0, 0.0, 0.0)
    found = interpolate(*ends, gap, {"train": DATA}, [0.0, 0.25, 0.5, 0.75, 1.0])
    barrier = found.barrier("train")
    assert math.isnan(barrier.height)
    assert not barrier.connected(1e9)


def test_models_of_other_dtypes_are_refused() -> None:
    one, two = two_nets()
    with pytest.raises(UserError, match=r"torch.float64 in the first and .* torch.float32 in the"):
        interpolate(one, two.float(), LOSS, data(), [0.0, 1.0])
