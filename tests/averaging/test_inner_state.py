"""Inner states that not every worker has: what is averaged, and that all make the same calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from localsgd.averaging.inner_state import InnerStates, Rule, rules_of
from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.errors import UserError
from localsgd.reduce import ExactMean, OrderedMean, Reducer
from localsgd.wire import Entry, InProcess, Metered
from tests.distributed.harness import run

MOMENTUM = "momentum_buffer=average"

Gradients = Sequence[float | None]
"""The gradient of each parameter of a worker, at every scalar; None where it got none."""


def sgd(parameters: Sequence[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.1, momentum=0.5)


def adam(parameters: Sequence[nn.Parameter]) -> Optimizer:
    return Adam(parameters, lr=0.1)


def stepped(gradients: Gradients, make: Callable[..., Optimizer] = sgd) -> Optimizer:
    """An optimizer of parameters of 2, 3, 4, ... scalars, after one step."""
    parameters = [
        nn.Parameter(torch.zeros(2 + index, dtype=torch.float64)) for index in range(len(gradients))
    ]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.grad = torch.full_like(parameter, gradient)
    optimizer = make(parameters)
    optimizer.step()
    return optimizer


def heights(optimizer: Optimizer, key: str = "momentum_buffer") -> list[float | None]:
    """The one value that the state of each parameter has; None where it has none."""
    found: list[float | None] = []
    for parameter in optimizer.param_groups[0]["params"]:
        state: dict[str, Tensor] = optimizer.state.get(parameter, {})
        values = set(state[key].tolist()) if key in state else {None}
        assert len(values) == 1
        found.append(*values)
    return found


def averaged(
    by_worker: Sequence[Gradients],
    rules: str = MOMENTUM,
    syncs: int = 1,
    make: Callable[..., Optimizer] = sgd,
    mean: Reducer | None = None,
) -> list[Optimizer]:
    """The optimizers of workers that this process hosts."""
    optimizers = [stepped(gradients, make) for gradients in by_worker]
    states = InnerStates(optimizers, rules_of(rules), InProcess(len(optimizers)), mean)
    states.average(syncs)
    return optimizers


def averaged_here(
    by_rank: Sequence[Gradients], rules: str = MOMENTUM, key: str = "momentum_buffer"
) -> list[Any] | str:
    """The heights of the one worker of this rank, or why it was refused."""
    make = sgd if key == "momentum_buffer" else adam
    optimizer = stepped(by_rank[dist.get_rank()], make)
    world = placement_of(Topology((len(by_rank),))).world
    try:
        InnerStates([optimizer], rules_of(rules), world).average(1)
    except UserError as error:
        return str(error)
    return heights(optimizer, key)


SOME: list[tuple[list[Gradients], list[list[float | None]]]] = [
    # Each rank has trained a part of its own: momenta of different tensors never mix.
    ([[1.0, None], [None, 100.0]], [[1.0, None], [None, 100.0]]),
    # The mean is over those that have one; who has none starts its own at its first gradient.
    ([[1.0, 2.0], [3.0, None]], [[2.0, 2.0], [2.0, None]]),
    # A rank without any state, as after a skipped step.
    ([[None, None], [3.0, 4.0]], [[None, None], [3.0, 4.0]]),
    ([[None, None], [None, None]], [[None, None], [None, None]]),
]


@pytest.mark.parametrize("mean", [ExactMean(), OrderedMean()])
@pytest.mark.parametrize(("given", "expected"), SOME)
def test_the_mean_is_over_those_that_have_a_state(
    given: list[Gradients], expected: list[list[float | None]], mean: Reducer
) -> None:
    assert [heights(optimizer) for optimizer in averaged(given, mean=mean)] == expected


def test_three_workers_of_whom_two_have_a_state() -> None:
    optimizers = averaged([[1.0, 7.0], [None, 8.0], [2.0, 12.0]])
    assert [heights(optimizer) for optimizer in optimizers] == [[1.5, 9.0], [None, 9.0], [1.5, 9.0]]


@pytest.mark.parametrize(("given", "expected"), SOME)
def test_processes_do_as_one(given: list[Gradients], expected: list[list[float | None]]) -> None:
    assert run(2, averaged_here, given, seconds=30) == expected


def test_processes_learn_keys_from_each_other() -> None:
    """Where `all` names none, and one of them has no state."""
    found = run(2, averaged_here, [[None, None], [3.0, None]], "all=average", "exp_avg", seconds=30)
    assert found == [[None, None], [pytest.approx(0.3), None]]


def test_all_processes_refuse_a_key_that_none_has() -> None:
    found = run(2, averaged_here, [[None], [3.0]], "exp_avg=average", seconds=30)
    assert found == ["the inner optimizer's state has no 'exp_avg'; it has momentum_buffer"] * 2


def test_reset_is_of_what_is_there() -> None:
    optimizers = averaged([[1.0, None], [None, 2.0]], "momentum_buffer=reset")
    assert [heights(optimizer) for optimizer in optimizers] == [[None, None], [None, None]]


KINDS: list[Callable[..., Optimizer]] = [
    partial(SGD, momentum=0.9, dampening=0.5),
    Adam,
    partial(AdamW, amsgrad=True),
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    partial(torch.optim.Adagrad, initial_accumulator_value=0.25),
    torch.optim.Adadelta,
    partial(torch.optim.RMSprop, momentum=0.5, centered=True),
    torch.optim.Rprop,
    torch.optim.ASGD,
]


def go_on(optimizer: Optimizer, parameter: nn.Parameter, steps: int) -> list[list[float]]:
    values = []
    for step in range(steps):
        parameter.grad = torch.tensor([1.0, 0.5, -(2.0**-step)], dtype=torch.float64)
        optimizer.step()
        values.append(parameter.tolist())
    return values


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("resumed", [False, True])
def test_reset_is_as_new(make: Callable[..., Optimizer], resumed: bool) -> None:
    """Counters, and what does not begin at 0, included."""
    old = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = make([old], lr=0.1)
    if not resumed:  # Whoever steps it first has an optimizer that looks like a resumed one.
        states = InnerStates([optimizer], rules_of("all=reset"), InProcess(1))
    go_on(optimizer, old, 5)
    if resumed:
        states = InnerStates([optimizer], rules_of("all=reset"), InProcess(1))
    states.average(1)
    new = nn.Parameter(old.detach().clone())
    assert go_on(optimizer, old, 4) == go_on(make([new], lr=0.1), new, 4)


def steps_and_moments(rules: str) -> tuple[float | None, list[float | None], list[float | None]]:
    [optimizer] = averaged([[1.0]], rules, make=adam)
    [parameter] = optimizer.param_groups[0]["params"]
    step = optimizer.state[parameter].get("step")
    first, second = heights(optimizer, "exp_avg"), heights(optimizer, "exp_avg_sq")
    return None if step is None else step.item(), first, second


def test_counters_are_reset_with_all_that_they_count() -> None:
    m, v = pytest.approx(0.1), pytest.approx(0.001)
    assert steps_and_moments("all=reset") == (None, [None], [None])
    assert steps_and_moments("exp_avg=reset,exp_avg_sq=reset") == (None, [None], [None])
    # Kept moments need their count; a counter by name does as it is told.
    assert steps_and_moments("exp_avg=reset") == (1, [0], [v])
    assert steps_and_moments("all=reset,exp_avg_sq=keep") == (1, [0], [v])
    assert steps_and_moments("all=reset,step=keep") == (1, [0], [0])
    assert steps_and_moments("step=reset") == (0, [m], [v])
    assert steps_and_moments("all=reset:2") == (1, [m], [v])


def test_a_product_begins_at_1() -> None:
    [optimizer] = averaged([[1.0]], "mu_product=reset", make=partial(torch.optim.NAdam, lr=0.1))
    [state] = optimizer.state.values()
    assert state["mu_product"] == 1


def in_few_calls(layers: int, piece: int) -> tuple[list[int], list[list[float | None]]]:
    entry = Entry()
    gradients = [[float(k + worker) for k in range(layers)] for worker in range(2)]
    optimizers = [stepped(own, adam) for own in gradients]
    states = InnerStates(optimizers, rules_of("all=average"), Metered(InProcess(2), entry))
    calls = []
    with mock.patch("localsgd.averaging.inner_state.PACK", piece):
        for syncs in (1, 2):
            states.average(syncs)
            calls.append(entry.calls)
    return calls, [heights(optimizer, "exp_avg") for optimizer in optimizers]


def test_states_are_packed() -> None:
    """The first sync learns keys, in two calls more; each takes sizes and means, however many."""
    packed, means = in_few_calls(20, 1 << 20)
    assert packed == [4, 6]
    assert means == [[pytest.approx(0.1 * (k + 0.5)) for k in range(20)]] * 2
    cut, same = in_few_calls(20, 40)
    assert cut[1] > packed[1] + 4
    assert same == means


def packed_here(by_rank: Sequence[Gradients]) -> list[Any]:
    """Half-precision states of this rank, some of which others lack."""
    torch.manual_seed(1)
    gradients = torch.randn(len(by_rank[0]), 64).bfloat16()  # the same on all ranks
    parameters = [nn.Parameter(torch.zeros(64, dtype=torch.bfloat16)) for _ in gradients]
    for parameter, given, own in zip(parameters, gradients, by_rank[dist.get_rank()], strict=True):
        parameter.grad = given if own is not None else None
    optimizer = sgd(parameters)
    optimizer.step()
    world = placement_of(Topology((len(by_rank),))).world
    InnerStates([optimizer], rules_of(MOMENTUM), world).average(1)
    states = [optimizer.state.get(p, {}).get("momentum_buffer") for p in parameters]
    pairs = zip(states, gradients, strict=True)
    return [None if state is None else torch.equal(state, given) for state, given in pairs]


def test_equal_states_in_half_precision_stay_as_they_are() -> None:
    """Those that all of 3 have, and those that 2 have: to the bit."""
    found = run(3, packed_here, [[1.0, 1.0], [1.0, None], [1.0, 1.0]], seconds=60)
    assert found == [[True, True], [True, None], [True, True]]


def test_a_key_with_a_rule_of_its_own_is_not_of_all() -> None:
    """Not even while its own is not due. Adam's moments of a gradient g are g/10 and g²/1000."""
    for syncs, first in ((1, [0.1, 0.3]), (2, [0.2, 0.2])):
        by_worker = averaged([[1.0], [3.0]], "exp_avg=average:2,all=reset", syncs, adam)
        found = [heights(one, "exp_avg") for one in by_worker]
        assert found == [[pytest.approx(value, rel=1e-14)] for value in first]
        assert [heights(one, "exp_avg_sq") for one in by_worker] == [[0.0], [0.0]]
    kept = averaged([[1.0], [3.0]], "exp_avg=keep,all=average", 1, adam)
    assert [heights(one, "exp_avg") for one in kept] == [[pytest.approx(0.1)], [pytest.approx(0.3)]]
    squares = [heights(one, "exp_avg_sq") for one in kept]
    assert squares == [[pytest.approx(0.005, rel=1e-14)]] * 2


def test_rules_as_they_are_written() -> None:
    assert rules_of("exp_avg=average, exp_avg_sq=reset:4,") == {
        "exp_avg": Rule("average", 1),
        "exp_avg_sq": Rule("reset", 4),
    }


def test_nothing_but_what_is_due_is_sent() -> None:
    """A gather of sizes at an average, one more of names at the first, then the mean itself."""
    entry = Entry()
    optimizers = [stepped([1.0, 2.0], adam) for _ in range(2)]
    rules = rules_of("exp_avg=average:2,exp_avg_sq=reset")
    states = InnerStates(optimizers, rules, Metered(InProcess(2), entry))
    names = len("exp_avg,exp_avg_sq,step")
    expected = [8 + names + 8, 3 * 8 + 8 * (2 + 3), 0, 3 * 8 + 8 * (2 + 3)]
    for syncs, sent in enumerate(expected, 1):
        before = entry.bytes
        states.average(syncs)
        assert entry.bytes - before == sent


def test_states_of_different_lengths_are_refused() -> None:
    optimizers = [stepped([1.0]) for _ in range(2)]
    [parameter] = optimizers[1].param_groups[0]["params"]
    optimizers[1].state[parameter]["momentum_buffer"] = torch.zeros(3)
    states = InnerStates(optimizers, rules_of(MOMENTUM), InProcess(2))
    with pytest.raises(UserError, match="'momentum_buffer' has 2 scalars on some workers and 3 on"):
        states.average(1)
