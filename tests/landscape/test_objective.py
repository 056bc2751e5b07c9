"""Scores and gradients over a data set, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from localsgd.errors import UserError
from localsgd.landscape import Objective, in_batches
from tests.distributed.harness import run
from tests.landscape.cases import batch_norm_net, objective, samples


def test_score_is_that_of_all_samples_at_once() -> None:
    net = batch_norm_net()
    x, y = samples()
    score = objective(net).score()
    output = net.eval()(x).detach()
    assert score.loss == pytest.approx(float(F.cross_entropy(output, y)), rel=1e-13)
    assert score.accuracy == float((output.argmax(1) == y).double().mean())
    assert score.samples == 30


def test_gradient_is_that_of_all_samples_at_once() -> None:
    net = batch_norm_net()
    ours = objective(net).gradient()
    F.cross_entropy(net.eval()(samples()[0]), samples()[1]).backward()
    theirs = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def _group_score() -> tuple:
    import torch.distributed as dist

    subject = objective(group=dist.group.WORLD)
    return subject.score(), subject.gradient()


def test_many_processes_are_one() -> None:
    score, gradient = objective().score(), objective().gradient()
    for other, other_gradient in run(3, _group_score):
        assert other.loss == pytest.approx(score.loss, rel=1e-13)
        assert (other.accuracy, other.samples) == (score.accuracy, score.samples)
        torch.testing.assert_close(other_gradient, gradient, rtol=1e-12, atol=1e-14)


def test_data_may_be_a_loader_a_function_or_mappings() -> None:
    x, y = samples()
    expected = objective(batch=10).score()
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    for data in (loader, lambda: iter(loader), [({"input": x}, y)]):
        score = Objective(batch_norm_net(), nn.CrossEntropyLoss(), data).score()
        assert score.loss == pytest.approx(expected.loss, rel=1e-13)


def test_float32_data_are_read_in_the_weights_precision() -> None:
    x, y = samples()
    rounded = Objective(batch_norm_net(), nn.CrossEntropyLoss(), [(x.float(), y)]).score()
    expected = Objective(batch_norm_net(), nn.CrossEntropyLoss(), [(x.float().double(), y)]).score()
    assert rounded == expected


def test_targets_that_are_no_classes_have_no_accuracy() -> None:
    data = [(torch.randn(4, 2).double(), torch.randn(4, 3).double())]
    assert Objective(nn.Linear(2, 3).double(), nn.MSELoss(), data).score().accuracy is None


class Bare(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: objective(Bare()), "no parameters"),
        (lambda: objective(parameters="conv*"), "no parameter matches 'conv\\*'.* 0.weight"),
        (lambda: objective(batch_norm_net().requires_grad_(False)), "frozen"),
        (
            lambda: Objective(batch_norm_net(), nn.CrossEntropyLoss(reduction="sum"), []),
            "reduction='sum'",
        ),
        (
            lambda: Objective(
                batch_norm_net(), lambda z, y: z.sum(1), in_batches(*samples(), 7)
            ).score(),
            r"shape \[7\]",
        ),
        (lambda: Objective(batch_norm_net(), nn.CrossEntropyLoss(), []).score(), "empty"),
        (lambda: Objective(batch_norm_net(), nn.CrossEntropyLoss(), iter([])).score(), "once"),
        (lambda: Objective(batch_norm_net(), nn.CrossEntropyLoss(), 3).score(), "type int"),
        (
            lambda: Objective(batch_norm_net(), nn.CrossEntropyLoss(), [samples()[0]]).score(),
            "batch 0 .* not a pair",
        ),
        (lambda: objective().score(torch.zeros(5).double()), r"shape \[5\] .* 382"),
        (lambda: in_batches(*samples(), 0), "batches of 0"),
        (
            lambda: objective(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())),
            "2 kinds",
        ),
    ],
)
def test_bad_input_gets_one_line(make, match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_are_refused(dtype: torch.dtype) -> None:
    """Counts of samples overflow, and sums of gradients lose what is added."""
    with pytest.raises(UserError, match=f"parameters are {dtype}, .* give model.float"):
        objective(batch_norm_net().to(dtype))
