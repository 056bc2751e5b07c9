"""`localsgd.save` and `load`: resumed runs, whole or not at all, other numbers of workers."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import localsgd
from localsgd import Delay, LocalSGD, UserError
from localsgd.reduce import CompressedMean, PowerSgd, Sign
from tests.distributed.harness import ChildFailed, run
from tests.optimizer.reference import assert_bits, loss_of, nesterov, net, values

pytestmark = pytest.mark.timeout(200)

Made = tuple[Any, LocalSGD]


def made(keywords: dict[str, Any], make: Any = nesterov, seed: int = 0) -> Made:
    model = net()
    torch.manual_seed(seed)
    inner = make(model)
    if keywords.get("ddp") and dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    options = {name: value for name, value in keywords.items() if name != "ddp"}
    return model, LocalSGD(inner, model, **{"local_steps": 3, **options})


def trained(model: Any, optimizer: LocalSGD, steps: int) -> None:
    rank = dist.get_rank() if dist.is_initialized() else 0
    for _ in range(steps):
        optimizer.zero_grad()
        noise = torch.rand(()).double()  # random numbers are a part of the state
        (loss_of(model, rank, optimizer.steps) * noise).backward()
        optimizer.step()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


SIGN = CompressedMean(Sign())
RESUMED: list[tuple[dict[str, Any], Any]] = [
    ({}, nesterov),
    ({"local_steps": 1}, adam),
    ({"local_steps": localsgd.post_local(2, after=5), "ddp": True}, nesterov),
    ({"outer": "diloco", "inner_state": "exp_avg=average"}, adam),
    ({"reducer": SIGN}, nesterov),
    ({"reducer": CompressedMean(Sign(), way="two-phase"), "outer": "slowmo"}, nesterov),
    ({"reducer": PowerSgd(rank=1)}, nesterov),
    ({"delay": Delay(fragments=2, syncs=1), "local_steps": 2}, nesterov),
    ({"delay": Delay(fragments=2, syncs=2), "reducer": SIGN, "local_steps": 2}, nesterov),
    ({"delay": Delay(syncs=1), "outer": "diloco", "local_steps": 2}, nesterov),
    ({"local_steps": localsgd.qsr(2, alpha=0.2)}, nesterov),
]
STOP, END = 4, 9


def resumed(folder: str) -> None:
    """Each way to average, cut after 4 of 9 steps and gone on from in other objects."""
    for index, (keywords, make) in enumerate(RESUMED):
        for asynchronous in (False, True) if index == 3 else (False,):
            at = Path(folder) / f"{index}-{asynchronous}"
            model, optimizer = made(keywords, make)
            trained(model, optimizer, STOP)
            scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5])
            done = localsgd.save(
                at, model, optimizer, asynchronous=asynchronous, scheduler=scheduler, epoch=7
            )
            undisturbed(model, optimizer, scheduler)
            done.result()
            again, new = made(keywords, make, seed=1)
            other = torch.optim.lr_scheduler.MultiStepLR(new, [5])
            assert localsgd.load(at, again, new, scheduler=other) == {"epoch": 7}
            undisturbed(again, new, other)
            assert_bits(values(again), values(model))
            assert str(new.state_dict()["state"]) == str(optimizer.state_dict()["state"])
            assert sorted(p.name for p in at.parent.glob(f"{at.name}*")) == [at.name]


def undisturbed(model: Any, optimizer: LocalSGD, scheduler: Any) -> None:
    for _ in range(END - STOP):
        trained(model, optimizer, 1)
        scheduler.step()
    optimizer.finish()


def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    run(2, resumed, str(tmp_path))


def test_with_one_worker_too(tmp_path: Path) -> None:
    resumed(str(tmp_path))


ACCUMULATED: list[dict[str, Any]] = [
    {"local_steps": 2},
    {"local_steps": 1},
    {"local_steps": 1, "ddp": True},
    {"local_steps": 2, "reducer": SIGN},
]


def accumulating(folder: str) -> None:
    """Cut between two micro-batches; a step that has used its gradients saves none."""
    rank = dist.get_rank()

    def micro(model: Any, optimizer: LocalSGD, part: int) -> None:
        first = part == 0 and isinstance(model, nn.parallel.DistributedDataParallel)
        with model.no_sync() if first else contextlib.nullcontext():
            loss_of(model, rank, 2 * optimizer.steps + part).backward()

    def end(model: Any, optimizer: LocalSGD) -> None:
        micro(model, optimizer, 1)
        optimizer.step()
        trained(model, optimizer, 3)
        optimizer.finish()

    for index, keywords in enumerate(ACCUMULATED):
        at = Path(folder) / str(index)
        model, optimizer = made(keywords, adam)
        trained(model, optimizer, STOP)
        assert not optimizer.accumulating
        localsgd.save(at, model, optimizer)
        again, new = made(keywords, adam, seed=1)
        localsgd.load(at, again, new)
        assert all(p.grad is None for p in again.parameters())
        model.zero_grad()
        micro(model, optimizer, 0)
        assert optimizer.accumulating
        localsgd.save(at, model, optimizer)
        end(model, optimizer)
        trained(again, new, 1)  # Its own gradients are no part of what it loads.
        localsgd.load(at, again, new)
        end(again, new)
        assert_bits(values(again), values(model))


def test_a_run_that_is_cut_between_micro_batches(tmp_path: Path) -> None:
    run(2, accumulating, str(tmp_path))


def between_micro_batches(folder: str) -> None:
    model, optimizer = made({})
    trained(model, optimizer, 2)
    loss_of(model, dist.get_rank(), 2).backward()
    localsgd.save(folder, model, optimizer)


def test_another_number_of_workers_says_what_is_dropped_or_refused(tmp_path: Path) -> None:
    run(2, between_micro_batches, str(tmp_path / "save"))
    model, optimizer = made({})
    with told() as lines:
        localsgd.load(tmp_path / "save", model, optimizer)
    assert "; gradients of micro-batches: dropped; " in lines[0]
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(UserError, match="the state is of the inner optimizer SGD, and this one is"):
        localsgd.load(tmp_path / "save", *made({}, adam))


def naive(folder: str) -> tuple[list[set[int]], list[bool]]:
    """Who a tensor of each worker came from, by keys of the model and by `localsgd.save`."""
    import torch.distributed.checkpoint as dcp

    model, optimizer = made({})
    trained(model, optimizer, STOP)
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, dict(model[0].state_dict() | model[3].state_dict()))
    wanted = {name: model.state_dict()[name] for name in model.state_dict() if "num" not in name}
    dist.all_gather_object(states, wanted)
    dcp.save(wanted, checkpoint_id=f"{folder}/naive")
    found = {name: torch.empty_like(tensor) for name, tensor in wanted.items()}
    dcp.load(found, checkpoint_id=f"{folder}/naive")
    sources = [
        {rank for rank, state in enumerate(states) if torch.equal(state[name], found[name])}
        for name in found
    ]
    localsgd.save(f"{folder}/ours", model, optimizer)
    again, new = made({})
    localsgd.load(f"{folder}/ours", again, new)
    return sources, [torch.equal(a, b) for a, b in zip(*map(tensors, (again, model)), strict=True)]


def tensors(model: nn.Module) -> list[torch.Tensor]:
    return list(model.state_dict().values())


def test_why_keys_go_by_worker(tmp_path: Path) -> None:
    """PyTorch's own save takes equal keys for replicas, and mixes the workers' models."""
    for sources, equal in run(2, naive, str(tmp_path)):
        own = [source for source in sources if len(source) == 1]  # a frozen one is everybody's
        assert {0} in own
        assert {1} in own
        assert all(equal)


@contextlib.contextmanager
def told() -> Any:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("localsgd").addHandler(handler)
    yield lines
    logging.getLogger("localsgd").removeHandler(handler)


# Whole or not at all.


def killed_at_each_call(folder: str) -> list[int]:
    """The epoch that is found after a second save was killed at its nth call of the system."""
    model, optimizer = made({})
    trained(model, optimizer, 2)
    found: list[int] = []
    while True:
        at = Path(folder) / str(len(found))
        localsgd.save(at, model, optimizer, epoch=1)
        child = os.fork()
        if not child:
            fatal(len(found))
            localsgd.save(at, model, optimizer, epoch=2)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert localsgd.saved(at)
        found.append(localsgd.load(at, *made({}))["epoch"])
        localsgd.save(at, model, optimizer, epoch=3)
        assert localsgd.load(at, *made({})) == {"epoch": 3}
        assert sorted(p.name for p in at.parent.glob(f"{at.name}*")) == [at.name]
        if os.WIFEXITED(status):
            return found


def fatal(call: int) -> None:
    """Kills this process at its nth call that changes the file system."""
    left = [call]

    def deadly(function: Any) -> Any:
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            if not left[0]:
                os.kill(os.getpid(), 9)
            left[0] -= 1
            return function(*arguments, **keywords)

        return wrapped

    for name in ("replace", "fsync", "unlink", "rename", "rmdir", "mkdir"):
        setattr(os, name, deadly(getattr(os, name)))


def test_a_save_that_is_killed_leaves_the_one_before(tmp_path: Path) -> None:
    [found] = run(1, killed_at_each_call, str(tmp_path))
    assert found == sorted(found)
    assert found[0] == 1
    assert found[-1] == 2
    assert len(found) > 8


def killed_rank(folder: str) -> None:
    from localsgd.saving import store

    model, optimizer = made({})
    localsgd.save(folder, model, optimizer, epoch=1)
    if dist.get_rank():
        store.Writer.write_data = lambda *_: os.kill(os.getpid(), 9)  # type: ignore[method-assign]
    localsgd.save(folder, model, optimizer, epoch=2)


def test_a_rank_that_is_killed_leaves_the_one_before(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed):
        run(2, killed_rank, str(tmp_path / "save"))
    assert localsgd.load(tmp_path / "save", *made({})) == {"epoch": 1}


def full_disk(folder: str, where: int) -> str:
    from localsgd.saving import store

    model, optimizer = made({})
    trained(model, optimizer, 2)
    localsgd.save(folder, model, optimizer, epoch=1)
    write = store.Writer.write_data

    def fails(self: Any, *arguments: Any) -> Any:
        if dist.get_rank() == where:
            raise OSError(28, "No space left on device")
        return write(self, *arguments)

    store.Writer.write_data = fails  # type: ignore[method-assign]
    said = []
    with told() as lines:
        for asynchronous in (False, True):
            with pytest.raises(UserError) as caught:
                localsgd.save(folder, model, optimizer, asynchronous=asynchronous, epoch=2).result()
            said.append(str(caught.value))
        while not lines:
            time.sleep(0.01)
    assert lines == [f"a save in the background has failed: {said[1]}"]
    store.Writer.write_data = write  # type: ignore[method-assign]
    with contextlib.suppress(UserError):  # It is told of the one in the background.
        localsgd.save(folder, model, optimizer, epoch=2)
    assert localsgd.load(folder, model, optimizer) == {"epoch": 1}
    assert said[0] == said[1]
    return said[0]


def test_a_full_disk_of_one_rank_is_told_to_all(tmp_path: Path) -> None:
    for text in run(2, full_disk, str(tmp_path / "save"), 1):
        assert "was not saved, as rank 1 failed: OSError: [Errno 28] No space left" in text
        assert "\n" not in text


# Refusals: one line, on all ranks, and nothing is changed.


class Calls:
    """Executed by any reader that lets files choose code."""

    def __reduce__(self) -> Any:
        return os.system, ("touch was-executed",)


def refusals(folder: str) -> list[str]:
    said: list[str] = []
    model, optimizer = made({"outer": "diloco"})
    trained(model, optimizer, 2)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5])
    whole = f"{folder}/whole"
    localsgd.save(whole, model, optimizer, scheduler=scheduler)
    before = str((values(model), optimizer.state_dict()))
    rank = dist.get_rank()
    other = made({"outer": "slowmo"})

    def refused(call: Any, *arguments: Any, **more: Any) -> None:
        with pytest.raises(UserError) as caught:
            call(*arguments, **more)
        said.append(str(caught.value))

    save, load = localsgd.save, localsgd.load
    refused(load, f"{folder}/none", model, optimizer)
    refused(load, whole, model, optimizer)
    refused(load, whole, model, optimizer, scheduler=scheduler, epoch=0)
    refused(load, whole, model, optimizer, scheduler=scheduler, scaler=scheduler)
    refused(load, whole, *other, scheduler=scheduler)
    refused(load, whole, *made({"outer": "diloco"}, adam), scheduler=scheduler)
    refused(load, whole, nn.Linear(2, 1), optimizer, scheduler=scheduler)
    wider = nn.ModuleDict({"a": model, "b": nn.Linear(1, 1)})
    refused(load, whole, wider, optimizer, scheduler=scheduler)
    refused(load, whole, model, [optimizer, optimizer], scheduler=scheduler)
    refused(save, whole, model, optimizer, scheduler=optimizer)
    refused(save, whole, model, optimizer.inner)
    refused(save, whole, model, [])
    refused(save, whole, model, optimizer, loss=lambda: 0)
    refused(save, whole, model, optimizer, mask=torch.eye(2).to_sparse())
    refused(save, folder, model, optimizer)  # holds something else
    refused(get_state_dict, model, optimizer)
    refused(set_state_dict, model, optimizer, model_state_dict={}, optim_state_dict={"state": {}})
    with optimizer.averaged_model():
        refused(save, whole, model, optimizer)
    dist.barrier()
    damaged(Path(whole), rank)
    refused(load, whole, model, optimizer, scheduler=scheduler)
    dist.barrier()
    if not rank:
        (Path(whole) / ".metadata").write_bytes(pickle.dumps(Calls()))
    dist.barrier()
    refused(load, whole, model, optimizer, scheduler=scheduler)
    assert not Path("was-executed").exists()
    assert str((values(model), optimizer.state_dict())) == before
    return said


def damaged(folder: Path, rank: int) -> None:
    """Worker 1's file lacks its second half."""
    if rank:
        path = folder / "__1_0.distcp"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    dist.barrier()


EXPECTED = [
    "rank 0: nothing was saved in ",
    "has a state of scheduler, which would begin anew; give it to load()",
    "epoch has no load_state_dict(), so nothing can be loaded into it; load() returns numbers",
    "has no state of scaler; it was saved without",
    "rank 0: the state was saved with outer ",
    "rank 0: the state is of the inner optimizer SGD, and this one is AdamW, which goes on from",
    "rank 0: the model lacks parameters of the optimizer",
    "was saved of another model: only one of the two has a.0.weight",
    "was saved with 1 optimizers, not with 2",
    "scheduler is a LocalSGD; give all of them as a list: [first, second]",
    "SGD is no LocalSGD; give the optimizer that LocalSGD(...) returned",
    "the list of optimizers is empty",
    "values/loss is a function, which can't be saved without code in the file",
    "values/mask is no dense tensor (sparse,",
    "holds whole, which is not of a save and would be lost; give a folder that nothing else uses",
    "torch.distributed.checkpoint.state_dict drops what LocalSGD remembers",
    'the state has no "local_sgd" part',
    "save() inside averaged_model() would take the average for this worker's own",
    "is damaged: EOFError",
    ".metadata asks for posix.system, which is not allowed",
]


def test_refusals(tmp_path: Path) -> None:
    first, second = run(2, refusals, str(tmp_path))
    for own, other, expected in zip(first, second, EXPECTED, strict=True):
        assert expected in own
        assert own == other
        assert "\n" not in own


def alone(folder: str) -> str:
    """What most scripts do: rank 0 saves alone, and the others go on."""
    model, optimizer = made({})
    trained(model, optimizer, 2)

    def go_on() -> None:
        if dist.get_rank() == 0:
            localsgd.save(folder, model, optimizer)
        trained(model, optimizer, 1)

    with pytest.raises(UserError) as caught:
        go_on()
    return str(caught.value)


def test_rank_0_alone_is_told_on_all_ranks(tmp_path: Path) -> None:
    for text in run(2, alone, str(tmp_path / "save")):
        assert text.startswith("rank 0 is in save() at step 2, rank 1 is in the sync at step 3;")


def test_the_averaged_model_needs_nothing_of_this_library(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model, optimizer = made({})
    (tmp_path / "save").mkdir()  # An empty folder may be there.
    localsgd.save(tmp_path / "save", model, optimizer)
    found = load_file(tmp_path / "save" / "model.safetensors")
    assert_bits(dict(sorted(found.items())), dict(sorted(values(model).items())))
