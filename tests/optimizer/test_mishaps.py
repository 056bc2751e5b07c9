"""What a loop of one's own does between the calls, or gets wrong, and what becomes of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from localsgd import LocalSGD, UserError, outer, plateau, waiting_below
from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.reduce import CompressedMean, ExactMean, PowerSgd, Sign
from localsgd.reduce.by_row import bound_to_all
from localsgd.rows.layout import Layout
from localsgd.schedule.signals import Signals
from tests.distributed.harness import run
from tests.optimizer.reference import (
    assert_bits,
    assert_same,
    loss_of,
    nesterov,
    net,
    reference,
)


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies, batch norm's statistics left out: they are each worker's own."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def trained(model: Any, optimizer: LocalSGD, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), optimizer.steps).backward()
        optimizer.step()


KEEP_AN_ANCHOR: list[dict[str, Any]] = [
    {"outer": [outer.diloco()]},
    {"reducer": [CompressedMean(Sign())]},
    {"outer": [outer.diloco(), outer.sgd(0.5)], "topology": "1x2", "local_steps": [2, 2]},
]


def loaded_late() -> list[bool]:
    """Weights that are loaded before the first step; nothing is trained, so nothing may move."""
    found = []
    for keywords in KEEP_AN_ANCHOR:
        model, other = net(), net()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(1.0)
        inner = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer = LocalSGD(inner, model, **{"local_steps": 2, **keywords})
        model.load_state_dict(other.state_dict())
        optimizer.inner.load_state_dict(torch.optim.SGD(other.parameters(), lr=0.0).state_dict())
        trained(model, optimizer, 4)
        before, after = parameters_of(other), parameters_of(model)
        found.append(all(torch.equal(before[name], after[name]) for name in before))
    return found


def test_weights_that_are_loaded_before_the_first_step_are_where_training_starts() -> None:
    assert run(2, loaded_late) == [[True] * len(KEEP_AN_ANCHOR)] * 2


def clipped() -> dict[str, Tensor]:
    """One rank's gradients overflow at the second step, and a clip by value hides it."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = LocalSGD(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, local_steps=1
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(model(torch.full((4, 3), 1.0 + dist.get_rank() + step)).sum()).backward()
        if (step, dist.get_rank()) == (1, 0):
            model.weight.grad[0, 0] = torch.inf
        scaler.unscale_(optimizer)
        optimizer.average_gradients()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    momentum = torch.cat([state["momentum_buffer"].flatten() for state in optimizer.state.values()])
    return {"momentum": momentum, **parameters_of(model)}


def test_an_overflow_that_a_clip_hides_is_skipped_by_all() -> None:
    first, second = run(2, clipped)
    assert_bits(first, second)


class Failing:
    """H = 2, until the step at which it can't say."""

    sees = ()

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, progress: Any) -> int:
        if progress.step >= self.step:
            raise ValueError("no H")
        return 2


def failed(keywords: dict[str, Any]) -> dict[str, Tensor]:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=Failing(2), **keywords)
    with pytest.raises(ValueError, match="no H"):
        trained(model, optimizer, 2)
    return parameters_of(model)


def test_a_schedule_that_fails_leaves_the_mean_behind() -> None:
    """And no sum, although it is asked while the sum is on its way."""
    [expected, _] = reference("..1", [[[0, 1]]])
    for rank in run(2, failed, {}):
        assert_same(rank, parameters_of(expected))
    first, second = run(2, failed, {"outer": [outer.diloco()]})
    assert_bits(first, second)
    assert first["0.weight"].sub(parameters_of(net())["0.weight"]).abs().max() < 1


def told_afterwards() -> list[int]:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=plateau(4, window=2, threshold=0.9))
    for step in range(12):
        optimizer.zero_grad()
        loss = loss_of(model, dist.get_rank(), step)
        loss.backward()
        optimizer.step()
        optimizer.report_loss(loss)
    return optimizer._loop.position.lengths


def test_a_loss_may_be_told_after_the_step() -> None:
    assert run(2, told_afterwards) == [[4], [4]]


def loaded_by_all(keywords: dict[str, Any]) -> str | None:
    """What a rank says to the state of rank 0."""
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=2, **keywords)
    trained(model, optimizer, 2)
    told = [optimizer.state_dict()]
    dist.broadcast_object_list(told, src=0)
    try:
        optimizer.load_state_dict(told[0])
    except UserError as error:
        return str(error)
    return None


def test_the_memory_of_another_rank_is_refused() -> None:
    first, second = run(2, loaded_by_all, {"reducer": [CompressedMean(Sign())]})
    assert first is None
    assert second.startswith("the state is of rank 0, and its levels and reducers have memory")


class Scaled(nn.Module):
    """A layer and a temperature, which is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 2), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


def moments_of_a_number(rule: str) -> dict[str, float]:
    torch.manual_seed(0)
    model = Scaled()
    inner = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = LocalSGD(inner, model, local_steps=2, inner_state=rule)
    for step in range(2):
        optimizer.zero_grad()
        model(torch.full((4, 3), 1.0 + dist.get_rank() + step)).sum().backward()
        optimizer.step()
    return {key: value.item() for key, value in optimizer.state[model.scale].items()}


def test_the_state_of_a_number_is_averaged_and_reset() -> None:
    first, second = run(2, moments_of_a_number, "exp_avg=average")
    assert first["exp_avg"] == second["exp_avg"] != 0
    assert first["exp_avg_sq"] != second["exp_avg_sq"]
    assert run(2, moments_of_a_number, "all=reset") == [{}, {}]


class Mixed(nn.Module):
    """A matrix in bfloat16, vectors in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8, bias=False).bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.norm(x).bfloat16())


def mixed() -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Mixed()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = LocalSGD(inner, model, local_steps=2, reducer=[PowerSgd(rank=1)])
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=draw)).float().square().sum().backward()
        optimizer.step()
    return parameters_of(model)


def test_power_sgd_of_a_model_whose_matrices_have_a_dtype_of_their_own() -> None:
    first, second = run(2, mixed)
    assert_bits(first, second)
    assert not torch.equal(first["norm.weight"], torch.ones(8))


def test_where_no_row_has_a_matrix_it_is_refused() -> None:
    vector, matrix = (Layout.of([("w", torch.empty(shape))]) for shape in ((8,), (8, 8)))
    kinds = [type(one) for one in bound_to_all(PowerSgd(rank=1), [matrix, vector])]
    assert kinds == [PowerSgd, ExactMean]
    with pytest.raises(UserError, match="makes no tensor of this model smaller"):
        bound_to_all(PowerSgd(rank=1), [vector, vector])


def test_waiting_is_not_measured_on_a_gpu() -> None:
    world = placement_of(Topology((1,))).world
    schedules: list[Callable[[Any], int]] = [waiting_below(0.05)]
    with pytest.raises(UserError, match="needs workers on CPUs"):
        Signals(schedules, world, torch.device("cuda"))
    assert Signals(schedules, world, torch.device("cpu")).needed


def test_ranks_without_a_process_group_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"WORLD_SIZE=2 .*init_process_group\(\) before LocalSGD"):
        LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), model, local_steps=2)
    monkeypatch.setenv("WORLD_SIZE", "1")
    optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), model, local_steps=2)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(UserError, match="called after LocalSGD was made"):
        optimizer.step()
