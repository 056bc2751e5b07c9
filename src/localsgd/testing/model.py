"""What every model of the trainer promises.

Shapes: B samples of a batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from localsgd.optimizer import LocalSGD
from localsgd.testing.comparing import near, same_bits
from localsgd.train.data.task import Task, as_read

Build = Callable[[Task], nn.Module]
INDICES = torch.arange(6)


def check_model(build: Build, task: Task) -> None:
    """Asserts that models made by `build(task)` can be trained by workers that average.

    Weights follow from torch's global seed; every trainable tensor gets a gradient and can lie in a
    row; one that is judged answers the same for a sample whatever is beside it; local SGD of one
    worker is plain SGD.

    Args:
        task: whose inputs and classes the model is for.
    """
    for check in CHECKS:
        check(build, task)


def made(build: Build, task: Task, seed: int = 0) -> nn.Module:
    """A model whose weights are from `seed`; torch's global state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        return build(task)


def _weights_follow_from_the_seed(build: Build, task: Task) -> None:
    """All seeds may give the same ones, as zeros or weights from elsewhere do."""
    one, again = (_weights(made(build, task)) for _ in range(2))
    for name, values in one.items():
        same_bits(again[name], values, f"{name} differs between models of the same seed")


def _every_trainable_tensor_gets_a_gradient(build: Build, task: Task) -> None:
    model = made(build, task)
    inputs, targets = task.train_batch(INDICES, None)
    task.loss(model(inputs), targets).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found = parameter.grad is not None and bool(parameter.grad.isfinite().all())
            assert found, f"{name} gets no finite gradient: freeze it, or use it"


def _a_judged_sample_is_judged_alone(build: Build, task: Task) -> None:
    model = made(build, task).double().eval()
    inputs = as_read(task.test_batch(INDICES)[0], model)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        together = model(inputs)
        alone = torch.cat([model(inputs[i : i + 1]) for i in range(len(inputs))])
    near(alone, together, "a sample's output in eval mode differs with the samples beside it")
    for name, value in model.state_dict().items():
        same_bits(value, before[name], f"{name} changes while the model is judged")


def _a_copy_is_apart(build: Build, task: Task) -> None:
    model = made(build, task)
    before = _weights(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    for name, values in _weights(model).items():
        same_bits(values, before[name], f"{name} is shared with a deep copy")


def _state_moves_to_another(build: Build, task: Task) -> None:
    one, other = made(build, task, 0), made(build, task, 1)
    other.load_state_dict(one.state_dict())
    inputs = task.test_batch(INDICES)[0]
    one.eval()
    other.eval()
    with torch.no_grad():
        same_bits(other(inputs), one(inputs), "one that has loaded a state gives other outputs")


def _local_sgd_of_one_worker_is_plain_sgd(build: Build, task: Task) -> None:
    plain, local = made(build, task), made(build, task)
    _train(plain, torch.optim.SGD(plain.parameters(), lr=0.01), task)
    inner = torch.optim.SGD(local.parameters(), lr=0.01)
    optimizer = LocalSGD(inner, local, local_steps=2)
    _train(local, optimizer, task)
    optimizer.finish()
    expected = _weights(plain)
    for name, values in _weights(local).items():
        near(values, expected[name], f"{name} is trained otherwise by LocalSGD", 1e-5)


CHECKS = (
    _weights_follow_from_the_seed,
    _every_trainable_tensor_gets_a_gradient,
    _a_judged_sample_is_judged_alone,
    _a_copy_is_apart,
    _state_moves_to_another,
    _local_sgd_of_one_worker_is_plain_sgd,
)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, task: Task) -> None:
    """Four steps; chance such as dropout's is the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(7)
        for _ in range(4):
            inputs, targets = task.train_batch(INDICES, None)
            optimizer.zero_grad()
            task.loss(model(inputs), targets).backward()
            optimizer.step()
