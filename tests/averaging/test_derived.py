"""What belongs to the mean of the weights, computed anew from it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from localsgd.averaging.buffers import mean_buffers, put_buffers
from localsgd.averaging.derived import derived_buffers, renew, renew_attributes
from localsgd.wire import InProcess


def mean_model(models: list[Any]) -> Any:
    """As the averaged model comes about: weights, then buffers, then what is derived."""
    renew_attributes(models[0])  # One of a forward pass can't be copied.
    mean = copy.deepcopy(models[0])
    with torch.no_grad():
        for name, parameter in mean.named_parameters():
            parameters = [dict(model.named_parameters())[name] for model in models]
            parameter.copy_(torch.stack(list(parameters)).mean(0))
    put_buffers(mean, mean_buffers(models, InProcess(len(models))))
    renew(mean)
    return mean


def apart(build: Callable[[], nn.Module], workers: int = 2) -> list[Any]:
    """Models with weights and derived buffers of their own."""
    models = []
    for worker in range(workers):
        torch.manual_seed(0)
        model = build()
        torch.manual_seed(worker + 1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        for _ in range(50):  # power iterations
            model(torch.randn(4, 6, dtype=torch.float64))
        models.append(model)
    return models


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def chained() -> nn.Module:
    layer = nn.Linear(6, 5).double()
    parametrize.register_parametrization(layer, "weight", Doubled())
    return parametrizations.spectral_norm(layer)


SPECTRAL = {
    "new": lambda: parametrizations.spectral_norm(nn.Linear(6, 5).double()),
    "old": lambda: spectral_norm(nn.Linear(6, 5).double()),
    "chained": chained,
    "other axis": lambda: parametrizations.spectral_norm(nn.Linear(6, 5).double(), dim=1),
}


@pytest.mark.parametrize("kind", SPECTRAL)
@pytest.mark.parametrize("training", [True, False])
def test_spectral_norm_is_1_of_the_mean(kind: str, training: bool) -> None:
    models = apart(SPECTRAL[kind])
    mean = mean_model(models).train(training)
    norm = torch.linalg.matrix_norm(mean.weight.detach(), 2)
    torch.testing.assert_close(norm, torch.ones_like(norm), rtol=1e-9, atol=1e-9)
    mean.eval()(torch.zeros(1, 6, dtype=torch.float64))
    norm = torch.linalg.matrix_norm(mean.weight.detach(), 2)
    torch.testing.assert_close(norm, torch.ones_like(norm), rtol=1e-9, atol=1e-9)


def test_the_names_of_derived_buffers() -> None:
    assert derived_buffers(nn.Sequential(SPECTRAL["new"]())) == {
        "0.parametrizations.weight.0._u",
        "0.parametrizations.weight.0._v",
    }
    assert derived_buffers(SPECTRAL["old"]()) == {"weight_u", "weight_v"}
    assert derived_buffers(nn.BatchNorm1d(2)) == set()


def test_an_orthogonal_weight_stays_orthogonal() -> None:
    models = apart(lambda: parametrizations.orthogonal(nn.Linear(6, 6).double()))
    with torch.no_grad():
        models[1].weight = torch.eye(6, dtype=torch.float64).roll(1, 0)  # another base
    weight = mean_model(models).weight.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(6, dtype=torch.float64))


@pytest.mark.parametrize("norm", [weight_norm, parametrizations.weight_norm], ids=["old", "new"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weight_norm_averages_lengths_and_directions(norm: Callable[..., nn.Module]) -> None:
    models = apart(lambda: norm(nn.Linear(6, 5).double()))
    mean = mean_model(models)
    length, direction = (p for name, p in mean.named_parameters() if name != "bias")
    expected = length * direction / direction.norm(dim=1, keepdim=True)
    torch.testing.assert_close(mean.weight.detach(), expected.detach())  # before any forward pass


def test_a_pruned_weight_is_of_the_mean_and_one_mask() -> None:
    models = apart(lambda: nn.Linear(6, 5).double())
    for model in models:
        prune.l1_unstructured(model, "weight", 0.5)
    assert not torch.equal(models[0].weight_mask, models[1].weight_mask)
    mean = mean_model(models)
    assert torch.equal(mean.weight_mask, models[0].weight_mask)
    assert torch.equal(mean.weight, mean.weight_orig * models[0].weight_mask)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scales_of_fake_quantisation_are_of_the_mean_range() -> None:
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    models: list[Any] = []
    for worker in range(2):
        model = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
        model(torch.tensor([-1.0, 2.0]) * (1 + worker))
        models.append(model)
    mean = mean_model(models)
    assert mean.activation_post_process.min_val.item() == -1.5
    assert mean.activation_post_process.max_val.item() == 3.0
    torch.testing.assert_close(mean.scale, torch.tensor([4.5 / 255]))
    assert mean.zero_point.item() == 85
    fresh = [FakeQuantize(MovingAverageMinMaxObserver) for _ in range(2)]  # nothing seen yet
    assert mean_model(fresh).scale.item() == 1.0
