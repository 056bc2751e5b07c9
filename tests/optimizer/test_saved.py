"""States that can't be loaded: damaged, of another model, of other settings, of another rank."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from localsgd import Delay, LocalSGD, UserError, outer, post_local
from localsgd.reduce import CompressedMean, PowerSgd, Sign
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, loss_of, nesterov, net, values

pytestmark = pytest.mark.timeout(120)


def made(model: Any = None, **keywords: Any) -> tuple[Any, LocalSGD]:
    model = net() if model is None else model
    return model, LocalSGD(nesterov(model), model, **{"local_steps": 2, **keywords})


def trained(model: Any, optimizer: LocalSGD, steps: int) -> None:
    rank = dist.get_rank() if dist.is_initialized() else 0
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, rank, optimizer.steps).backward()
        optimizer.step()


def refused(optimizer: LocalSGD, state: Any) -> str:
    """The words of a refusal that changes nothing."""
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(UserError) as caught:
        optimizer.load_state_dict(state)
    after = optimizer.state_dict()
    assert str(after) == str(before)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def saved(**keywords: Any) -> dict[str, Any]:
    model, optimizer = made(**keywords)
    trained(model, optimizer, 3)
    return copy.deepcopy(optimizer.state_dict())


PARTS = [*made()[1].state_dict()["local_sgd"]]


@pytest.mark.parametrize("part", PARTS)
def test_a_state_that_lacks_a_part(part: str) -> None:
    state = saved()
    del state["local_sgd"][part]
    said = refused(made()[1], state)
    assert said.startswith(f"the state has no {part!r}, so training can't continue from it;")


DAMAGES: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("rank", lambda state: state.update(local_sgd=None)),
    ("rank", lambda state: state.update(local_sgd=[])),
    ("position", lambda state: state["local_sgd"].update(position=None)),
    ("position", lambda state: state["local_sgd"]["position"].pop("left")),
    ("position", lambda state: state["local_sgd"]["position"].pop("memories")),
    ("position", lambda state: state["local_sgd"]["position"]["lengths"].append(2)),
]


@pytest.mark.parametrize(("part", "damage"), DAMAGES)
def test_a_damaged_state(part: str, damage: Callable[[dict[str, Any]], Any]) -> None:
    state = saved()
    damage(state)
    assert refused(made()[1], state).startswith(f"the state has no {part!r}, ")


def _renamed() -> nn.Module:
    return nn.ModuleDict(dict(zip("abcd", net(), strict=True)))


def _wider() -> nn.Module:
    model = net()
    model[3] = nn.Linear(5, 3).double()
    return model


def _thawed() -> nn.Module:
    model = net()
    model[3].bias.requires_grad_(True)
    return model


@pytest.mark.parametrize("build", [_renamed, _wider, lambda: net().float(), _thawed])
def test_a_state_of_another_model(build: Callable[[], nn.Module]) -> None:
    assert refused(made(build())[1], saved()).startswith("the state is of another model: names,")


@pytest.mark.parametrize(
    ("what", "other"),
    [
        ("reducer", {"reducer": [CompressedMean(Sign())]}),
        ("outer", {"outer": [outer.diloco()]}),
        ("delay", {"delay": Delay(fragments=2)}),
        ("inner_state", {"inner_state": "all=reset"}),
    ],
)
def test_a_state_of_other_settings(what: str, other: dict[str, Any]) -> None:
    for keywords, state in (({}, saved(**other)), (other, saved())):
        said = refused(made(**keywords)[1], state)
        assert said.startswith(f"the state was saved with {what} ")
        assert "make it with the same" in said


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def _amsgrad(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.3, amsgrad=True)


def _groups(order: int) -> Callable[[nn.Module], torch.optim.Optimizer]:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        parameters = [p for p in model.parameters() if p.requires_grad]
        return torch.optim.SGD([{"params": [p]} for p in parameters[::order]], lr=0.1)

    return make


def of(make: Any) -> tuple[Any, LocalSGD]:
    model = net()
    return model, LocalSGD(make(model), model, local_steps=2)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (nesterov, _adamw, "the state is of the inner optimizer SGD, and this one is AdamW, which"),
        (_adamw, nesterov, "the state is of the inner optimizer AdamW, and this one is SGD, which"),
        (_adam, _adamw, "the state is of the inner optimizer Adam, and this one is AdamW, which"),
        (_groups(1), _groups(-1), "the inner optimizer's groups have other parameters than when"),
    ],
)
def test_a_state_of_another_inner_optimizer(before: Any, after: Any, said: str) -> None:
    model, optimizer = of(before)
    trained(model, optimizer, 3)
    state = copy.deepcopy(optimizer.state_dict())
    assert refused(of(after)[1], state).startswith(said)
    del state["local_sgd"]["made_with"]["inner optimizer"]  # As in older states.
    del state["local_sgd"]["made_with"]["parameter groups"]
    of(before)[1].load_state_dict(state)


def test_settings_of_the_inner_optimizer_are_those_of_the_state() -> None:
    """As PyTorch does it, so that state and settings fit."""
    model, optimizer = of(_adamw)
    trained(model, optimizer, 3)
    again, new = of(_amsgrad)
    new.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    again.load_state_dict(model.state_dict())
    trained(model, optimizer, 3)
    trained(again, new, 3)
    assert_bits(values(again), values(model))
    assert (new.param_groups[0]["lr"], new.param_groups[0]["amsgrad"]) == (0.01, False)


def test_the_schedule_may_change() -> None:
    _, optimizer = made(local_steps=5)
    optimizer.load_state_dict(saved())
    assert optimizer.steps == 3


def others(keywords: dict[str, Any]) -> str | None:
    """What a rank reads that loads the state of the next one; None where it may."""
    model, optimizer = made(**keywords)
    trained(model, optimizer, 5)
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, optimizer.state_dict())
    _, new = made(**keywords)
    state = states[(dist.get_rank() + 1) % len(states)]
    try:
        new.load_state_dict(state)
    except UserError as error:
        return str(error)
    return None


SIGN, RANK = CompressedMean(Sign()), PowerSgd(rank=1)


@pytest.mark.parametrize(
    ("ranks", "keywords"),
    [
        (2, {"reducer": [SIGN]}),
        (2, {"reducer": [RANK]}),
        (2, {"reducer": [SIGN], "delay": Delay(fragments=2)}),
        (2, {"delay": Delay(fragments=2, syncs=1)}),
        (4, {"topology": "2x2", "local_steps": [1, 2], "reducer": [SIGN, None]}),
        (4, {"topology": "2x2", "local_steps": [1, 2], "outer": [outer.diloco(), None]}),
        (3, {"topology": "1+2", "local_steps": [2, 2], "reducer": [None, SIGN]}),
    ],
)
def test_the_memory_of_another_rank(ranks: int, keywords: dict[str, Any]) -> None:
    for rank, said in enumerate(run(ranks, others, keywords)):
        assert said is not None, rank
        other = (rank + 1) % ranks
        assert said.startswith(f"the state is of rank {other}, and its levels and reducers ")
        assert f"which rank {rank} can't take over;" in said


def plain(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def first_rank_s(
    make: Any, steps: int, finish: bool, keywords: dict[str, Any], goes_on: bool
) -> list[str]:
    """What a rank reads that loads rank 0's state; with all momenta, and with none."""
    model = net()
    optimizer = LocalSGD(make(model), model, **{"local_steps": 2, **keywords})
    trained(model, optimizer, steps)
    if finish:
        optimizer.finish()
    states: list[Any] = [optimizer.state_dict()]
    dist.broadcast_object_list(states)
    said = []
    for state in (states[0], {**states[0], "state": {}}):
        model = net()
        new = LocalSGD(make(model), model, **{"local_steps": 2, **keywords})
        try:
            new.load_state_dict(state)
        except UserError as error:
            said.append(str(error))
        else:
            said.append("")
        if goes_on:
            trained(model, new, 4)
    return said


BETWEEN = "it was saved between two syncs, when each rank had weights of its own"
AVERAGED = {"inner_state": "exp_avg=average,exp_avg_sq=reset"}


@pytest.mark.parametrize(
    ("make", "steps", "finish", "keywords", "why"),
    [
        (nesterov, 4, False, {}, "its momenta (momentum_buffer) are that rank's alone"),
        (nesterov, 3, True, {}, "its momenta (momentum_buffer) are that rank's alone"),
        (adam, 4, False, {}, "its momenta (exp_avg, exp_avg_sq) are that rank's alone"),
        (adam, 3, True, AVERAGED, "its momenta (exp_avg, exp_avg_sq) are that rank's alone"),
        (nesterov, 4, False, {"local_steps": 1, "average": "models"}, "its momenta"),
        (nesterov, 4, False, {"outer": [outer.diloco()]}, "its momenta"),
        (plain, 3, False, {}, BETWEEN),
        (plain, 4, False, {"delay": Delay(fragments=2)}, BETWEEN),
        (nesterov, 2, False, {"topology": "1x2", "local_steps": [2, 2]}, BETWEEN),
    ],
)
def test_a_state_of_rank_0_alone(
    make: Any, steps: int, finish: bool, keywords: dict[str, Any], why: str
) -> None:
    first, second = run(2, first_rank_s, make, steps, finish, keywords, False)
    assert first == ["", ""]
    assert second[0].startswith(f"the state is of rank 0, and {why}")
    assert "which rank 1 can't take over; let each rank load the state that it saved" in second[0]
    assert "\n" not in second[0]
    assert (second[1] == "") == (why != BETWEEN)


@pytest.mark.parametrize(
    ("make", "steps", "finish", "keywords"),
    [
        (nesterov, 3, False, {"local_steps": 1}),
        (adam, 3, False, {"local_steps": 1}),
        (adam, 3, False, {"local_steps": post_local(2, after=3)}),  # the last step with H = 1
        (plain, 4, False, {}),
        (plain, 3, True, {}),
        (plain, 4, False, {"outer": [outer.diloco()]}),
        (plain, 3, True, {"delay": Delay(fragments=2)}),
        (adam, 4, False, AVERAGED),
        (nesterov, 0, False, {}),
    ],
)
def test_a_state_that_is_the_same_on_all_ranks_serves_all(
    make: Any, steps: int, finish: bool, keywords: dict[str, Any]
) -> None:
    assert run(2, first_rank_s, make, steps, finish, keywords, True) == [["", ""]] * 2


def resumed_from_one_file(keywords: dict[str, Any]) -> bool:
    """All ranks go on from what the first one saved, and begin with no momenta, on purpose."""
    model, optimizer = made(**keywords)
    trained(model, optimizer, 4)
    optimizer.finish()
    states: list[Any] = [(optimizer.state_dict(), model.state_dict())]
    dist.broadcast_object_list(states)
    new_model, new = made(**keywords)
    new_model.load_state_dict(states[0][1])
    new.load_state_dict({**states[0][0], "state": {}})
    assert new.steps == 4
    trained(new_model, new, 4)
    new.finish()
    weights: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(weights, values(new_model))
    assert_bits(weights[0], weights[-1])
    return bool(torch.isfinite(new_model[0].weight).all())


def test_one_rank_s_state_is_gone_on_from_on_all() -> None:
    assert run(2, resumed_from_one_file, {"outer": [outer.diloco()]}) == [True, True]
