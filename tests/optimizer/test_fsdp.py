"""FSDP2 inside workers: what a worker decides as a whole, and where shards lie."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.profiler import ProfilerActivity, profile

from localsgd import Delay, LocalSGD, adacomm, post_local
from localsgd.averaging import level
from localsgd.rows import model_rows
from localsgd.rows.shards import local, padded_shards
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, assert_same
from tests.optimizer.sharded import (
    SHARDS,
    Values,
    halves,
    loss_of,
    meshes,
    momentum,
    net,
    perceptron,
    rank_of_worker,
    sharded,
    train,
    whole,
)


def mesh_and_optimizer(model: nn.Module, **keywords: Any) -> tuple[nn.Module, LocalSGD]:
    mesh = meshes(2, SHARDS)
    model = sharded(model, mesh)
    return model, LocalSGD(momentum(model), model, topology=mesh["replicate"], **keywords)


def left_out() -> None:
    """A shard on rank 1 is not finite at a sync: its worker is left out, also on rank 0."""
    model, optimizer = mesh_and_optimizer(net(), local_steps=2, not_finite="leave_out")
    worker, position = rank_of_worker()
    train([optimizer], model, worker, range(1), position)

    def spoil() -> None:
        if dist.get_rank() == 1:
            local(model[0].weight.grad)[0, 0] = torch.inf

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        train([optimizer], model, worker, range(1, 2), position, before=spoil)
    assert [str(w.message).split(" had")[0] for w in said] == ["rank 0"] * (dist.get_rank() == 0)
    mine = whole(model)
    assert all(bool(value.isfinite().all()) for value in mine.values())
    train([optimizer], model, worker, range(2, 4), position)
    optimizer.finish()
    alike(whole(model))


def read_once() -> None:
    """A row that was read for the whole worker is not read again; what is made of it is."""
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 0),
        ({"outer": "diloco"}, 1),
        ({"delay": Delay(fragments=2)}, 1),
    ]
    for keywords, reads in cases:
        model, optimizer = mesh_and_optimizer(net(), local_steps=2, **keywords)
        worker, position = rank_of_worker()
        with mock.patch.object(level, "leave_out", wraps=level.leave_out) as read:
            train([optimizer], model, worker, range(2), position)
        assert read.call_count == reads


def step_left_out() -> None:
    """Gradients of one shard are not finite while they are averaged: nobody takes the step."""

    def spoil(gradient: Tensor) -> Tensor:
        return gradient * torch.tensor(
            [1.0] * 5 + [torch.inf]
        )  # of the last row of the first layer

    for average in ("gradients", "auto"):
        model, optimizer = mesh_and_optimizer(
            net(), local_steps=1, average=average, not_finite="leave_out"
        )
        worker, position = rank_of_worker()
        train([optimizer], model, worker, range(1), position)
        before = whole(model)
        optimizer.zero_grad()
        x, y = halves(worker, 1)[position]
        if worker == 1:
            model[0].register_forward_hook(lambda _, __, out: out.register_hook(spoil) and None)
        (model(x) - y).square().mean().backward()
        assert bool(local(model[0].weight.grad).isfinite().all()) == (position == 0)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            optimizer.step()
        assert len(said) <= 1  # by one rank of those that had them
        assert_bits(whole(model), before)


def alike(values: Values) -> None:
    """All ranks have these values."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, values)
    for other in found:
        assert_bits(other, found[0])


def scaled() -> None:
    """An overflow on one shard: the worker skips as a whole, the others and the sync don't."""
    model, optimizer = mesh_and_optimizer(net(), local_steps=3)
    worker, position = rank_of_worker()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    weights = []
    for step in range(3):
        optimizer.zero_grad()
        x, y = halves(worker, step)[position]
        scaler.scale((model(x) - y).square().mean()).backward()
        if step == 1 and dist.get_rank() == 1:
            local(model[0].weight.grad)[0, 0] = torch.inf
        before = whole(model)
        scaler.step(optimizer)
        scaler.update()
        weights.append((before, whole(model)))
    skipped = all(torch.equal(weights[1][0][name], value) for name, value in weights[1][1].items())
    assert skipped == (worker == 0)
    assert scaler.get_scale() == (2.0 if worker == 0 else 4.0)
    assert optimizer.steps == 3
    alike(whole(model))


def clipped() -> None:
    """The norm that PyTorch clips by is that of the worker's whole gradient."""
    model, optimizer = mesh_and_optimizer(net(), local_steps=2)
    worker, position = rank_of_worker()
    loss_of(model, halves(worker, 0)[position : position + 1]).backward()
    gradients = [p.grad.full_tensor() for p in model.parameters()]
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    torch.testing.assert_close(
        norm.full_tensor(), torch.cat([g.flatten() for g in gradients]).norm()
    )
    after = torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()])
    torch.testing.assert_close(
        after.norm(), torch.tensor(1e-3, dtype=torch.float64), rtol=1e-3, atol=0
    )
    optimizer.step()


def averaged_and_back() -> None:
    """`averaged_model()` after a forward pass alone, from which FSDP keeps what it gathered."""
    mesh = meshes(2, SHARDS)
    worker, position = rank_of_worker()
    model = fully_shard(net(), mesh=mesh["shard"], reshard_after_forward=False)
    optimizer = LocalSGD(momentum(model), model, topology=mesh["replicate"], local_steps=4)
    train([optimizer], model, worker, range(2), position)
    own, x = whole(model), halves(0, 0)[0][0]
    found: list[Any] = [None] * 4
    dist.all_gather_object(found, own)
    expected = net()
    expected.load_state_dict({n: (found[0][n] + found[2][n]) / 2 for n in own})
    with torch.no_grad():
        own_output = model(x)
        with optimizer.averaged_model():
            torch.testing.assert_close(model(x), expected(x), rtol=1e-12, atol=1e-12)
        assert torch.equal(model(x), own_output)
        optimizer.finish()  # with what was gathered still there
        torch.testing.assert_close(model(x), expected(x), rtol=1e-12, atol=1e-12)
    model.reshard()
    alike(whole(model))


def resumed() -> None:
    """In the middle of a round, by each rank's own state."""
    keywords = {"local_steps": 4, "reducer": "ef-sign", "outer": "diloco"}
    ends = []
    for stop in (None, 5):
        model, optimizer = mesh_and_optimizer(
            net(), local_steps=4, reducer="ef-sign", outer="diloco"
        )
        worker, position = rank_of_worker()
        train([optimizer], model, worker, range(stop or 9), position)
        if stop is not None:
            weights, state = whole(model), optimizer.state_dict()
            model, optimizer = mesh_and_optimizer(net(), **keywords)
            put(model, weights)
            optimizer.load_state_dict(state)
            train([optimizer], model, worker, range(stop, 9), position)
        ends.append(whole(model))
    assert_bits(*ends)


@torch.no_grad()
def put(model: nn.Module, weights: Values) -> None:
    for name, parameter in model.named_parameters():
        rows = weights[name].chunk(SHARDS)
        memory = local(parameter)
        if memory.numel():
            memory.copy_(rows[parameter.device_mesh.get_local_rank()])


def judged_by_loss() -> None:
    """Losses differ between the ranks of a worker; all use the H that their mean gives."""
    model, optimizer = mesh_and_optimizer(net(), local_steps=adacomm(3, period=3))
    worker, position = rank_of_worker()
    lengths = []
    for step in range(14):
        train([optimizer], model, worker, range(step, step + 1), position)
        optimizer.report_loss(float(2 ** -(step * (1 + position))))
        lengths.append(optimizer._loop.position.lengths[0])
    found: list[Any] = [None] * 4
    dist.all_gather_object(found, lengths)
    assert found == [lengths] * 4
    assert len(set(lengths)) > 1


def decided_together() -> None:
    for check in (
        left_out,
        read_once,
        step_left_out,
        scaled,
        clipped,
        averaged_and_back,
        resumed,
        judged_by_loss,
    ):
        check()


def test_a_worker_decides_as_a_whole() -> None:
    run(4, decided_together)


def places(optimizer: LocalSGD) -> list[bool]:
    """Of each parameter, whether its shard lies in a row."""
    found = {}
    for row in optimizer._rows:
        apart = set(row.elsewhere)
        found |= {slot.name: i not in apart for i, slot in enumerate(row.layout.slots)}
    return list(found.values())


def addresses(model: nn.Module) -> list[int]:
    return [local(p).data_ptr() for p in model.parameters()]


def pads_anew() -> bool:
    """Whether FSDP alone moves the padded shards of this rank when a state is loaded.

    PyTorch 2.9 does, even if they are padded already.
    """
    model = sharded(net(), meshes(2, SHARDS))
    before = addresses(model)
    model.load_state_dict(model.state_dict())
    return addresses(model) != before


def where_shards_lie() -> None:
    """All lie in the row but padded ones that FSDP moves, and a sync takes no new memory."""
    model, optimizer = mesh_and_optimizer(perceptron(4, 256, 256, 3, 1), local_steps=1 << 30)
    worker, position = rank_of_worker()
    even = [p.shape[0] % SHARDS == 0 for p in model.parameters()]
    assert even == [True] * 4 + [False] * 4
    # FSDP pads the shorter ones.
    assert sum(len(row.padded) for row in optimizer._rows) == 2 * position
    train([optimizer], model, worker, range(2), position)
    before, moves = addresses(model), pads_anew()
    model.load_state_dict(model.state_dict())  # after which FSDP looks for its memory anew
    optimizer.finish()
    train([optimizer], model, worker, range(2, 3), position)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        optimizer._loop.sync()
    taken = sum(max(0, event.self_cpu_memory_usage) for event in profiled.key_averages())
    assert taken < 0.05 * sum(row.values.nbytes for row in optimizer._rows)
    empty = [not local(p).numel() for p in model.parameters()]
    stay = [any(case) for case in zip(even, empty, [not moves] * 8, strict=True)]
    assert places(optimizer) == stay
    assert all(stay) or sum(stay) == 6  # all, or all but the two padded ones
    for now, earlier, stays in zip(addresses(model), before, stay, strict=True):
        assert now == earlier or not stays
    alike(whole(model))


def moved_by_fsdp() -> None:
    """Padded shards that FSDP has moved, at once or in the middle of training, are copied."""
    worker, position = rank_of_worker()
    moves, ends = pads_anew(), []
    for moved in ("never", "at once", "later"):
        with mock.patch.object(
            model_rows, "padded_shards", (lambda _: {}) if moved == "at once" else padded_shards
        ):
            model, optimizer = mesh_and_optimizer(net(), local_steps=2)
        at_once = moves or (moved == "at once" and position == 1)
        assert all(places(optimizer)) == (not at_once)
        train([optimizer], model, worker, range(3), position)
        if moved == "later":
            for shard in padded_shards(model).values():
                parameter = shard.known.sharded_param
                parameter._local_tensor = local(parameter).clone()
                shard.known.reset_sharded_param()
            assert all(places(optimizer)) == (not position)
        train([optimizer], model, worker, range(3, 6), position)
        ends.append(whole(model))
    assert_bits(*ends[:2])
    assert_bits(*ends[1:])


class Tied(nn.Module):
    """Two uses of one weight, a frozen layer, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.second = perceptron(4, 4, 4, 4)[::2]
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.ones(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.frozen(torch.tanh(self.first(x))))) * self.scale


def frozen_and_tied() -> None:
    mesh = meshes(2, SHARDS)
    worker, position = rank_of_worker()
    model = fully_shard(Tied(), mesh=mesh["shard"])
    optimizer = LocalSGD(momentum(model), model, topology=mesh["replicate"], local_steps=3)
    train([optimizer], model, worker, range(6), position)
    alike(whole(model))
    assert model.first.weight is model.second.weight
    frozen = whole(Tied())["frozen.weight"]
    assert torch.equal(model.frozen.weight.full_tensor(), frozen)


def in_other_precision() -> None:
    """bfloat16 in passes: rows keep the parameters' own dtype, and stay in place."""
    mesh = meshes(2, SHARDS)
    worker, position = rank_of_worker()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for steps in (1, 2):
        model = fully_shard(net().float(), mesh=mesh["shard"], mp_policy=policy)
        optimizer = LocalSGD(momentum(model), model, topology=mesh["replicate"], local_steps=steps)
        for step in range(2 * steps):
            optimizer.zero_grad()
            x, y = halves(worker, step)[position]
            (model(x.bfloat16()) - y).square().mean().backward()
            own = whole(model)
            optimizer.step()
        assert {row.values.dtype for row in optimizer._rows} == {torch.float32}
        alike(whole(model))
        assert any(not torch.equal(own[name], value) for name, value in whole(model).items())


def offloaded() -> None:
    mesh = meshes(2, SHARDS)
    worker, position = rank_of_worker()
    ends = []
    for policy in ({}, {"offload_policy": CPUOffloadPolicy(pin_memory=False)}):
        model = fully_shard(net(), mesh=mesh["shard"], **policy)
        optimizer = LocalSGD(momentum(model), model, topology=mesh["replicate"], local_steps=2)
        train([optimizer], model, worker, range(4), position)
        ends.append(whole(model))
    assert_same(*ends)


def made_after_training() -> None:
    """FSDP has gathered from the shards' first memory already."""
    mesh = meshes(2, SHARDS)
    worker, position = rank_of_worker()
    ends = []
    for late in (False, True):
        model = sharded(net(), mesh)
        if late:
            with torch.no_grad():
                model(halves(0, 0)[0][0])
        optimizer = LocalSGD(momentum(model), model, topology=mesh["replicate"], local_steps=2)
        train([optimizer], model, worker, range(5), position)
        ends.append(whole(model))
    assert_bits(*ends)


def compiled() -> None:
    """Blocks compiled before `fully_shard` are not compiled again at a sync, nor at the switch."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    mesh = meshes(2, SHARDS)
    worker, position = rank_of_worker()
    ends = []
    for use in (True, False):
        parts = [torch.compile(part, backend=backend) if use else part for part in net()]
        model = sharded(nn.Sequential(*parts), mesh)
        optimizer = LocalSGD(
            momentum(model),
            model,
            topology=mesh["replicate"],
            local_steps=post_local(2, after=2),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # by which dynamo looks at a model
            train([optimizer], model, worker, range(1), position)
            first = len(graphs)
            train([optimizer], model, worker, range(1, 8), position)
        assert len(graphs) == first
        assert first > 0
        ends.append(list(whole(model).values()))
    for found, expected in zip(*ends, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def in_memory() -> None:
    for check in (
        compiled,
        where_shards_lie,
        moved_by_fsdp,
        frozen_and_tied,
        in_other_precision,
        offloaded,
        made_after_training,
    ):
        check()


def test_where_shards_lie() -> None:
    run(4, in_memory)
