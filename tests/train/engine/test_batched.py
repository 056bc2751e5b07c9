"""All workers in one pass: what each computes alone, to rounding, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from localsgd.errors import UserError
from localsgd.train.engine.batched import batched_losses, check_batched
from localsgd.train.engine.hosted import Inner, Workers
from tests.problems import data, loss_on, net, no_decay


def samples(worker: int, step: int) -> Tensor:
    return torch.arange(4) + 10 * worker + step


def alone(model: nn.Module, worker: int, step: int) -> Tensor:
    return loss_on(model, samples(worker, step))


def batch(worker: int, step: int) -> tuple[Tensor, Tensor]:
    images, labels = data()
    return images[samples(worker, step)], labels[samples(worker, step)]


def loss(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def sgd(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=1.0, momentum=0.9)


def hosted(name: str, at_once: bool, **options: Any) -> Workers:
    model = net(name)
    if options.pop("channels_last", False):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    losses = batched_losses(batch, loss) if at_once else None
    inner = Inner(sgd, weight_decay=0.1, no_decay=no_decay(model))
    return Workers(model, alone, inner, range(3), losses=losses, **options)


def trained(workers: Workers) -> Workers:
    for _ in range(4):
        workers.backward()
        workers.apply(0.1)
    return workers


def close(one: Workers, other: Workers) -> None:
    def same(left: Tensor, right: Tensor) -> None:
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)

    same(one.params, other.params)
    same(one.grads, other.grads)
    same(one.take_losses()[0], other.take_losses()[0])
    for (_, left), (_, right) in zip(one.buffers, other.buffers, strict=True):
        same(left, right)


@pytest.mark.parametrize(
    ("name", "options"), [("plain", {}), ("conv", {}), ("conv", {"channels_last": True})]
)
def test_it_is_what_each_computes_alone(name: str, options: dict[str, Any]) -> None:
    passes: list[int] = []
    together = hosted(name, at_once=True, **options)
    for model in together.models:
        model.register_forward_pre_hook(lambda *_: passes.append(1))
    trained(together)
    assert len(passes) == 4  # one a step, not one a worker
    apart = trained(hosted(name, at_once=False, **options))
    close(together, apart)
    assert not torch.equal(together.params[0], together.params[1])


def test_workers_that_sit_out_are_passed_over() -> None:
    pair = []
    for at_once in (True, False):
        turns = iter([True, True, True, True, False, True, True, True, True, False, True, True])
        active = lambda worker, turns=turns: next(turns)  # noqa: E731
        pair.append(trained(hosted("conv", at_once, active=active)))
    assert pair[0].taken == [3, 3, 4]
    close(*pair)


def test_transforms_see_each_workers_gradient() -> None:
    def halve(gradient: Tensor, worker: int, step: int) -> None:
        gradient /= 1 + worker

    pair = [trained(hosted("plain", at_once, transforms=[halve])) for at_once in (True, False)]
    close(*pair)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (nn.Dropout(0.5), "draws at random (1 is a Dropout)"),
        (nn.LSTM(3, 3), "is recurrent (1 is a LSTM)"),
    ],
)
def test_models_that_differ_by_worker_are_refused(part: nn.Module, says: str) -> None:
    check_batched(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0)), "mlp")
    with pytest.raises(UserError) as caught:
        check_batched(nn.Sequential(nn.Linear(3, 3), part), "mine")
    assert says in str(caught.value)
