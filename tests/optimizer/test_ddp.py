"""A model in DistributedDataParallel: what crosses the wire, and the same result as without."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from localsgd import LocalSGD, UserError, post_local
from tests.distributed.harness import run
from tests.optimizer.reference import assert_same, batch, loss_of, nesterov, net, values


def calls_of(action: Callable[[], None]) -> dict[str, int]:
    """Collectives that `action` starts, from Python or from within DDP, by name."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        action()
    return {e.key: e.count for e in profiled.key_averages() if e.key.startswith("c10d::")}


def step(optimizer: LocalSGD, model: nn.Module, number: int) -> None:
    optimizer.zero_grad()
    loss_of(model, dist.get_rank(), number).backward()
    optimizer.step()


def calls_by_step() -> list[dict[str, int]]:
    module = net()
    ddp = DistributedDataParallel(module, find_unused_parameters=True)
    optimizer = LocalSGD(nesterov(module), ddp, local_steps=post_local(3, after=2))

    def steps(first: int, last: int) -> None:
        for number in range(first, last):
            step(optimizer, ddp, number)

    stretches = ((0, 1), (1, 2), (2, 4), (4, 7), (7, 8))
    return [calls_of(functools.partial(steps, *stretch)) for stretch in stretches]


def test_nothing_crosses_in_a_local_phase() -> None:
    for calls in run(2, calls_by_step):
        assert calls[1]["c10d::allreduce_"] >= 1  # a bucket; DDP's used parameters at times
        assert "c10d::broadcast_" not in calls[1]
        assert calls[2:] == [{}, {"c10d::allreduce_": 1}, {"c10d::allreduce_": 1}]


def bytes_of_a_phase(wrapped: bool) -> tuple[int, int]:
    module = net()
    model = DistributedDataParallel(module) if wrapped else module
    optimizer = LocalSGD(nesterov(module), model, local_steps=1)
    for number in range(2):
        step(optimizer, model, number)
    return optimizer.ledger.levels[0].calls, optimizer.ledger.bytes


def test_gradients_that_ddp_averages_are_metered() -> None:
    trainable = sum(p.numel() for p in net().parameters() if p.requires_grad)
    for calls, sent in run(2, bytes_of_a_phase, True):
        assert (calls, sent) == (2, 2 * 8 * trainable)


def accumulate(wrapped: bool, keywords: dict[str, Any]) -> dict[str, Tensor]:
    """Three steps of two half batches each."""
    module = net()
    model = DistributedDataParallel(module) if wrapped else module
    optimizer = LocalSGD(nesterov(module), model, **keywords)
    for number in range(6):
        optimizer.zero_grad()
        x, y = batch(dist.get_rank(), number)
        if isinstance(model, DistributedDataParallel):
            with model.no_sync():
                nn.functional.mse_loss(model(x[:3]), y[:3]).backward()
        else:
            nn.functional.mse_loss(model(x[:3]), y[:3]).backward()
        nn.functional.mse_loss(model(x[3:]), y[3:]).backward()
        optimizer.step()
    return values(module)


@pytest.mark.parametrize("local_steps", [1, 2, post_local(2, after=2)])
def test_gradients_accumulate_as_without_ddp(local_steps: Any) -> None:
    keywords = {"local_steps": local_steps}
    pairs = zip(
        run(2, accumulate, True, keywords), run(2, accumulate, False, keywords), strict=True
    )
    for wrapped, plain in pairs:
        assert_same(wrapped, plain)


class Branches(nn.Module):
    """Rank 0 uses `left`, rank 1 `right`, both `trunk`, nobody `idle`."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.trunk = nn.Linear(3, 3).double()
        self.left = nn.Linear(3, 3).double()
        self.right = nn.Linear(3, 3).double()
        self.idle = nn.Linear(3, 3).double()
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator).double()

    def forward(self, x: Tensor) -> Tensor:
        return (self.left if dist.get_rank() % 2 == 0 else self.right)(self.trunk(x))


def branch(wrapped: bool, keywords: dict[str, Any]) -> tuple[dict[str, Tensor], list[str]]:
    module = Branches()
    model = DistributedDataParallel(module, find_unused_parameters=True) if wrapped else module
    inner = torch.optim.Adam(module.parameters(), lr=0.1, weight_decay=0.1)
    optimizer = LocalSGD(inner, model, **keywords)
    for number in range(4):
        optimizer.zero_grad()
        model(batch(dist.get_rank(), number)[0]).square().sum().backward()
        optimizer.step()
    stepped = [name for name, p in module.named_parameters() if p in inner.state]
    return values(module), stepped


def test_parameters_that_some_ranks_do_not_use() -> None:
    plain, wrapped = (run(2, branch, which, {"local_steps": 1}) for which in (False, True))
    start = values(Branches())
    for (found, stepped), (expected, _) in zip(wrapped, plain, strict=True):
        assert_same(found, expected)
        assert_same(found, plain[0][0])
        assert torch.equal(found["idle.weight"], start["idle.weight"])  # no weight decay either
        assert stepped == [
            f"{part}.{kind}" for part in ("trunk", "left", "right") for kind in ("weight", "bias")
        ]


def test_they_are_each_block_s_own_where_blocks_share_gradients() -> None:
    keywords = {"local_steps": [1, 4], "topology": "2x1"}
    plain, wrapped = (run(2, branch, which, keywords) for which in (False, True))
    for (found, stepped), (expected, expected_steps) in zip(wrapped, plain, strict=True):
        assert_same(found, expected)
        assert stepped == expected_steps
        assert len(stepped) == 4


def two_optimizers(wrapped: bool) -> dict[str, Tensor]:
    module = net()
    model = DistributedDataParallel(module) if wrapped else module
    optimizers = [
        LocalSGD(torch.optim.Adam(module[:2].parameters(), lr=0.1), model, local_steps=1),
        LocalSGD(torch.optim.SGD(module[2:].parameters(), lr=0.1), model, local_steps=3),
    ]
    for number in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, dist.get_rank(), number).backward()
        for optimizer in optimizers:
            optimizer.step()
    before = values(module)
    with optimizers[0].averaged_model(), optimizers[1].averaged_model():
        averaged = values(module)
    assert_same(values(module), before)
    for optimizer in optimizers:
        optimizer.finish()
    assert_same(values(module), averaged)
    return averaged


def test_two_optimizers_on_one_model() -> None:
    for wrapped, plain in zip(
        run(2, two_optimizers, True), run(2, two_optimizers, False), strict=True
    ):
        assert_same(wrapped, plain)


def without_ddp(local_steps: Any, steps: int) -> dict[str, Tensor]:
    module = net()
    optimizer = LocalSGD(nesterov(module), module, local_steps=local_steps)
    for number in range(steps):
        step(optimizer, module, number)
    return values(module)


def static_graph() -> str:
    ddp = DistributedDataParallel(net(), static_graph=True)
    with pytest.raises(UserError, match="make it without static_graph") as caught:
        LocalSGD(nesterov(ddp.module), ddp, local_steps=4)
    return str(caught.value)


def test_a_static_graph_is_refused() -> None:
    assert all(run(2, static_graph))


def around_the_hook() -> dict[str, Tensor]:
    """The model's own module is called, so that DDP never averages."""
    module = net()
    optimizer = LocalSGD(nesterov(module), DistributedDataParallel(module), local_steps=1)
    for number in range(3):
        step(optimizer, module, number)
    return values(module)


def test_gradients_are_averaged_where_ddp_was_not_asked() -> None:
    for found, plain in zip(run(2, around_the_hook), run(2, without_ddp, 1, 3), strict=True):
        assert_same(found, plain)


def made_anew() -> Sequence[dict[str, Tensor]]:
    """A second LocalSGD on the same DDP model, and one on a deep copy of it."""
    module = net()
    ddp = DistributedDataParallel(module)
    first = LocalSGD(nesterov(module), ddp, local_steps=1)
    step(first, ddp, 0)
    first.finish()
    second = LocalSGD(nesterov(module), ddp, local_steps=1)
    twin, third = copy.deepcopy((ddp, second))
    for model, optimizer in ((ddp, second), (twin, third)):
        for number in range(1, 4):
            step(optimizer, model, number)
        assert optimizer.ledger.levels[0].calls == 3
        assert optimizer._gradients._overlap is not None
    return values(module), values(twin.module)


def test_a_second_optimizer_and_a_copy_average_as_the_first() -> None:
    results = run(2, made_anew)
    for original, twin in results:
        assert_same(twin, original)
        assert torch.equal(original["3.weight"], results[0][0]["3.weight"])


def with_a_hook_of_ones_own() -> str:
    ddp = DistributedDataParallel(net())
    ddp.register_comm_hook(None, lambda state, bucket: None)
    with pytest.raises(UserError) as caught:
        LocalSGD(nesterov(ddp.module), ddp, local_steps=1)
    LocalSGD(nesterov(ddp.module), ddp, local_steps=1, average="models")
    return str(caught.value)


def test_a_hook_of_the_user_s_is_refused() -> None:
    for text in run(2, with_a_hook_of_ones_own):
        assert "has a communication hook already" in text
