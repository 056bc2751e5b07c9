"""Calls that all ranks must make, made by some; and ranks that are late, gone or elsewhere."""

from __future__ import annotations

import contextlib
import copy
import gc
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from localsgd import Delay, LocalSGD, PeerLost, UserError
from localsgd.reduce import CompressedMean, Sign
from localsgd.wire import presence
from tests.distributed.harness import run
from tests.optimizer.reference import loss_of, nesterov, net

pytestmark = pytest.mark.timeout(400)


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Looks around often."""
    with mock.patch.object(presence, "SLICE", timedelta(seconds=0.1)):
        yield


def trained(model: nn.Module, optimizer: LocalSGD, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), optimizer.steps).backward()
        optimizer.step()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def mean_of(x: Tensor) -> Tensor:
    total = x.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def made(**keywords: Any) -> tuple[Any, LocalSGD]:
    model = net()
    return model, LocalSGD(nesterov(model), model, **{"local_steps": 4, "timeout": 60, **keywords})


def entered(optimizer: LocalSGD) -> None:
    with optimizer.averaged_model():
        pass


CALLS: dict[str, Callable[[LocalSGD], object]] = {
    "averaged_model()": entered,
    "finish()": LocalSGD.finish,
}


def alone(call: str, keywords: dict[str, Any], before: int, further: int) -> tuple[str, float]:
    """The first rank makes the call, the others train on; its words and seconds."""
    with quick():
        model, optimizer = made(**keywords)
        trained(model, optimizer, before)
        dist.barrier()
        start = time.monotonic()
        with pytest.raises(UserError) as caught:
            CALLS[call](optimizer) if dist.get_rank() == 0 else trained(model, optimizer, further)
    assert flat(model).isfinite().all()
    return str(caught.value), time.monotonic() - start


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("ranks", "keywords", "where"),
    [
        (2, {}, "the sync at step 4"),
        (4, {}, "the sync at step 4"),
        (4, {"topology": "2x2", "local_steps": [4, 2]}, "the sync of level 1 at step 4"),
        (2, {"local_steps": 1}, "the averaging of gradients at step 3"),
        (2, {"reducer": [CompressedMean(Sign())]}, "the sync at step 4"),
        (3, {"local_steps": 1, "average": "models"}, "the sync at step 3"),
    ],
)
def test_a_call_by_one_rank_ends_on_all_with_a_line_that_says_who_is_where(
    call: str, ranks: int, keywords: dict[str, Any], where: str
) -> None:
    if "topology" in keywords and call == "finish()":
        return  # The same path.
    for said, seconds in run(ranks, alone, call, keywords, 2, 8):
        assert said.startswith(f"rank 0 is in {call} at step 2, ")
        assert re.search(rf"ranks? [123, ]+ (is|are) in {where}", said)
        assert "all ranks must make the same calls" in said
        assert "\n" not in said
        assert seconds < 30, seconds


def gone_on_after(call: str) -> float:
    """The seconds in which the second rank drops all, while what it has begun is under way."""
    store = distributed_c10d._get_default_store()
    alone(call, {}, 2, 8)
    if dist.get_rank() == 0:
        store.wait(["dropped"])
        return 0.0
    start = time.monotonic()
    dist.destroy_process_group()
    gc.collect()
    store.set("dropped", "")
    return time.monotonic() - start


def test_a_program_can_go_on_after_such_an_error() -> None:
    assert max(run(2, gone_on_after, "finish()")) < 30


def two_calls(first: str, second: str, more: int) -> str:
    model, optimizer = made()
    trained(model, optimizer, 1 + more * dist.get_rank())
    with pytest.raises(UserError) as caught:
        CALLS[second if dist.get_rank() else first](optimizer)
    return str(caught.value)


def test_calls_that_differ_and_calls_after_different_steps() -> None:
    for said in run(3, two_calls, "finish()", "averaged_model()", 0):
        assert said.startswith(
            "rank 0 is in finish() at step 1, ranks 1, 2 are in averaged_model()"
        )
    for said in run(2, two_calls, "averaged_model()", "averaged_model()", 1):
        assert said.startswith(
            "rank 0 is in averaged_model() at step 1, rank 1 is in averaged_model()"
        )


def saved_by_one(keywords: dict[str, Any], saver: int | None) -> list[Tensor]:
    """The last rank comes to each mean late, and one saves while it is on its way."""
    model, optimizer = made(**keywords)
    for step in range(9):
        if dist.get_rank() == dist.get_world_size() - 1:
            time.sleep(0.02)
        trained(model, optimizer, 1)
        if dist.get_rank() == saver and step % 2:
            optimizer.state_dict()
            time.sleep(0.02)
    optimizer.finish()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(
    ("ranks", "keywords"),
    [
        (2, {"local_steps": 2}),
        (4, {"topology": "2x2", "local_steps": [1, 2]}),
        (3, {"topology": "1+2", "local_steps": [1, 2]}),
        (4, {"topology": "2x2", "local_steps": [1, 1], "reducer": [None, CompressedMean(Sign())]}),
    ],
)
def test_one_rank_may_save_a_state_while_a_mean_is_on_its_way(
    ranks: int, keywords: dict[str, Any]
) -> None:
    keywords = {**keywords, "delay": Delay(syncs=1)}
    expected = run(ranks, saved_by_one, keywords, None)
    for saver in (0, ranks - 1):
        for rank, parameters in enumerate(run(ranks, saved_by_one, keywords, saver)):
            assert all(map(torch.equal, parameters, expected[rank]))


def late_at_the_start(ends: bool) -> str:
    """The second rank comes after the first has given up."""
    store = distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["gone on"])
        if ends:
            return ""
    with quick(), pytest.raises(PeerLost) as caught:
        made(timeout=1 if dist.get_rank() == 0 else 60)
    store.set("gone on", "")
    return str(caught.value)


def test_a_rank_that_is_late_for_the_constructor_is_named_within_the_limit() -> None:
    first, second = run(2, late_at_the_start, False)
    assert first == (
        "rank 1 did not come to LocalSGD() within `timeout` (1 s); all ranks must call it; if they "
        "wait in a collective of the program's own, such as dist.barrier(), call LocalSGD() on all "
        "ranks before it"
    )
    assert second == f"rank 0 has stopped waiting: {first}"
    assert run(2, late_at_the_start, True) == [first, ""]


def groups_left() -> int:
    def make_and_drop() -> int:
        made()
        gc.collect()
        return len(distributed_c10d._world.pg_map)

    return make_and_drop() - make_and_drop()


def test_process_groups_go_with_their_optimizer() -> None:
    assert run(2, groups_left) == [0, 0]


def copied_and_dropped() -> bool:
    """A deep copy goes on over the groups of what it is a copy of."""
    model, optimizer = made(local_steps=2)
    model, optimizer = copy.deepcopy((model, optimizer))
    gc.collect()
    trained(model, optimizer, 2)
    return torch.allclose(flat(model), mean_of(flat(model)))


def test_a_copy_keeps_the_groups() -> None:
    assert run(2, copied_and_dropped) == [True, True]


def changed_on_one_rank() -> str:
    model, optimizer = made(local_steps=1)
    if dist.get_rank() == 1:
        with torch.no_grad():
            model[0].weight[0, 0] += 1
    with pytest.raises(UserError) as caught:
        trained(model, optimizer, 1)
    return str(caught.value)


def test_weights_that_are_loaded_on_one_rank_after_construction_are_refused() -> None:
    for said in run(3, changed_on_one_rank):
        assert said.startswith("rank 1 and rank 0 differ in weights at the first step;")


def loaded_on_one_rank() -> str:
    with quick():
        model, optimizer = made(local_steps=2)
        trained(model, optimizer, 1)
        state = optimizer.state_dict()
        trained(model, optimizer, 3)
        dist.barrier()
        if dist.get_rank() == 0:
            optimizer.load_state_dict(state)
        with pytest.raises(UserError) as caught:
            trained(model, optimizer, 2)
    return str(caught.value)


def test_a_state_that_one_rank_alone_loads_is_refused() -> None:
    for said in run(2, loaded_on_one_rank):
        assert said.startswith("rank 0 is in step() at step 1, rank 1 is in the sync at step 6")


def parted(finish: bool) -> tuple[Tensor, Tensor]:
    """H = 1, and one rank's averaged gradients are scaled: what is shown, and the mean."""
    model, optimizer = made(local_steps=1)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), optimizer.steps).backward()
        optimizer.average_gradients()
        for parameter in model.parameters():
            if parameter.grad is not None and dist.get_rank():
                parameter.grad *= 2
        optimizer.step()
    expected = mean_of(flat(model))
    if finish:
        optimizer.finish()
        return flat(model), expected
    with optimizer.averaged_model():
        return flat(model), expected


@pytest.mark.parametrize("finish", [False, True])
def test_the_averaged_model_is_the_mean_also_where_gradients_are_averaged(finish: bool) -> None:
    (first, expected), (second, _) = run(2, parted, finish)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, expected, rtol=1e-12, atol=1e-12)


def unequal_buffers(call: str) -> str:
    model = net()
    model.register_buffer("bank", torch.zeros(2))
    optimizer = LocalSGD(nesterov(model), model, local_steps=2)
    model.bank = torch.ones(2 + dist.get_rank())
    with pytest.raises(UserError) as caught:
        CALLS[call](optimizer)
    return str(caught.value)


@pytest.mark.parametrize("call", CALLS)
def test_buffers_of_other_lengths_are_refused_on_all(call: str) -> None:
    for said in run(2, unequal_buffers, call):
        assert said.startswith("the buffer bank (torch.float32 [")
        assert "differs in dtype or shape between worker 1 and worker 0" in said


@contextlib.contextmanager
def impatient() -> Iterator[tuple[list[str], dist.Store]]:
    """What this rank says of those that it waits for; the store has `said` then."""
    store = distributed_c10d._get_default_store()
    said: list[str] = []

    def warn(text: str, **_: Any) -> None:
        said.append(text)
        store.set("said", "")

    with (
        quick(),
        mock.patch.object(presence, "PATIENCE_SECONDS", 0.2),
        mock.patch.object(presence.warnings, "warn", warn),
    ):
        yield said, store


def waited_for() -> list[str]:
    """The third of three ranks comes to a sync when another has said that it is not there."""
    with impatient() as (said, store):
        model, optimizer = made(local_steps=2)
        trained(model, optimizer, 1)
        if dist.get_rank() == 2:
            store.wait(["said"])
        trained(model, optimizer, 1)
    return said


def test_after_some_time_of_waiting_one_rank_says_for_whom() -> None:
    first, second, third = run(3, waited_for)
    assert len(first) == 1
    assert first[0].startswith("rank 0 has waited for 0 s in the sync at step 2: rank 2 did not")
    assert re.search(r"last seen: rank 2 in training at step \d or later$", first[0])
    assert second == third == []


def in_a_wait_of_its_own() -> list[str]:
    """Rank 0 evaluates the average, for which the other waits in the program's own barrier."""
    with impatient() as (said, store):
        model, optimizer = made(local_steps=2)
        trained(model, optimizer, 1)
        if dist.get_rank() == 1:
            store.wait(["said"])
        entered(optimizer)
    return said


def test_a_wait_in_the_program_s_own_barrier_is_guessed() -> None:
    said, _ = run(2, in_a_wait_of_its_own)
    why = (
        "; if they wait in a collective of the program's own, such as dist.barrier(), call "
        "averaged_model() on all ranks before it"
    )
    assert said[0].startswith("rank 0 has waited for 0 s in averaged_model() at step 1: rank 1 did")
    assert said[0].endswith(f"last seen: rank 1 in training at step 1 or later{why}")


def left_in_backward() -> str | None:
    """The second rank ends, and the first one's gradients are on their way in the backward pass."""
    ddp = DistributedDataParallel(net())
    optimizer = LocalSGD(nesterov(ddp), ddp, local_steps=1, timeout=5)
    trained(ddp, optimizer, 2)
    if dist.get_rank() == 1:
        dist.destroy_process_group()
        return None
    with pytest.raises(PeerLost) as caught:
        trained(ddp, optimizer, 1)
    return str(caught.value)


def test_a_loss_in_the_backward_pass_of_ddp_is_a_lost_peer() -> None:
    said, _ = run(2, left_in_backward)
    assert said.startswith("rank 1 ")
    assert "last seen: rank 1 in " in said
    assert "rank 0 is in the averaging of gradients at step 3" in said
