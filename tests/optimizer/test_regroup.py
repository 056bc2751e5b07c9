"""Runs that another number of workers goes on with."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import localsgd
from localsgd import Delay
from localsgd.errors import UserError
from localsgd.optimizer import regroup
from localsgd.reduce import CompressedMean, PowerSgd, Sign
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, loss_of, net, values
from tests.optimizer.test_save_load import SIGN, STOP, adam, made, told, trained

pytestmark = pytest.mark.timeout(200)

REGROUPED: list[dict[str, Any]] = [
    {},
    {"reducer": SIGN},
    {"reducer": CompressedMean(Sign(), way="two-phase"), "outer": "slowmo"},
    {"reducer": PowerSgd(rank=1)},
    {"reducer": SIGN, "delay": Delay(fragments=2, syncs=1), "local_steps": 2},
    {"outer": "diloco", "delay": Delay(fragments=2), "local_steps": 2},
]


def parted(folder: str) -> list[dict[str, Any]]:
    found = []
    for index, keywords in enumerate(REGROUPED):
        model, optimizer = made(keywords, adam)
        trained(model, optimizer, STOP)
        localsgd.save(f"{folder}/{index}", model, optimizer, epoch=index)
        with optimizer.averaged_model():
            average = values(model)
        found.append({"state": optimizer.state_dict(), "average": average})
    return found


def regrouped(folder: str) -> list[dict[str, Any]]:
    found = []
    for index, keywords in enumerate(REGROUPED):
        model, optimizer = made(keywords, adam)
        with told() as lines:
            assert localsgd.load(f"{folder}/{index}", model, optimizer) == {"epoch": index}
        assert len(lines) == (dist.get_rank() == 0)
        start, now = values(model), copy.deepcopy(optimizer.state_dict())
        if index == 4:  # It can be saved again before it has trained.
            again, new = made(keywords, adam)
            localsgd.save(f"{folder}/again", model, optimizer)
            localsgd.load(f"{folder}/again", again, new)
            assert str(new.state_dict()) == str(now)
            torch.manual_seed(0)
            trained(again, new, 5)
        torch.manual_seed(0)
        row = optimizer._rows[0].values.clone()
        trained(model, optimizer, 1)
        [[level]] = optimizer.state_dict()["local_sgd"]["levels"]
        if anchors := [part["anchor"] for part in regroup._parts(level) if "anchor" in part]:
            assert torch.equal(torch.cat(anchors, -1)[0], row)
        trained(model, optimizer, 4)
        if index == 4:
            assert_bits(values(again), values(model))
        found.append({"state": now, "start": start, "said": lines})
    return found


def errors(states: list[Any]) -> torch.Tensor:
    """What is still to enter the anchor, as a vector: 1/K sum e, plus what owners remember."""
    whole = torch.zeros(())
    for state in states:
        [[level]] = state["local_sgd"]["levels"]
        own = level["reducer"]
        parts = [own] if "feedback" in own else [own[name] for name in level["fragments"]]
        vector = torch.cat([part["error"][0, 0] for part in parts])[:48] / len(states)
        for part in parts:
            if "owner_error" in part:
                owned = part["owner_error"][0, 0]
                start = int(part["place"]) * len(owned)
                vector[start : start + len(owned)] += owned[: max(0, 48 - start)]
        whole = whole + vector
    return whole


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_another_number_of_workers_goes_on(tmp_path: Path, before: int, after: int) -> None:
    by_worker = run(before, parted, str(tmp_path))
    found = run(after, regrouped, str(tmp_path))
    for index, keywords in enumerate(REGROUPED):
        then = [worker[index] for worker in by_worker]
        now = [worker[index] for worker in found]
        for worker in now:
            assert_bits(worker["start"], then[0]["average"])
            assert worker["state"]["local_sgd"]["steps"] == STOP
            position = worker["state"]["local_sgd"]["position"]
            assert position["left"] == position["lengths"]
        for parameter, state in now[0]["state"]["state"].items():
            mean = sum(each["state"]["state"][parameter]["exp_avg"] for each in then) / before
            torch.testing.assert_close(state["exp_avg"], mean, rtol=1e-14, atol=0)
            assert float(state["step"]) == STOP
        if "reducer" in keywords:
            owed = errors([worker["state"] for worker in then])
            assert owed.abs().sum() > 0
            kept = errors([worker["state"] for worker in now])
            torch.testing.assert_close(kept, owed, rtol=1e-12, atol=1e-12)
        if "outer" in keywords:
            first, own = (each[0]["state"]["local_sgd"]["levels"][0][0] for each in (then, now))
            parts = [list(e.get("fragments", {"0": e}).values()) for e in (first, own)]
            momenta = [
                torch.cat([part["outer"]["momentum_buffer"] for part in each], -1)[0, :48]
                for each in parts
            ]
            assert torch.equal(*momenta)
        text = now[0]["said"][0]
        assert f"was saved by {before} workers and is gone on from by {after}, at step 4" in text
        assert "\n" not in text


BLOCKS: dict[str, Any] = {"local_steps": [1, 2], "reducer": SIGN, "outer": "slowmo"}


def in_blocks(folder: str, topology: str) -> Any:
    model, optimizer = made({**BLOCKS, "topology": topology})
    if not localsgd.saved(folder):
        trained(model, optimizer, 5)
        localsgd.save(folder, model, optimizer)
        with optimizer.averaged_model():
            return values(model)
    with told() as lines:
        localsgd.load(folder, model, optimizer)
    start = values(model)
    trained(model, optimizer, 4)
    optimizer.finish()
    flat, other = made({"reducer": SIGN, "outer": "slowmo"})
    with told() as of_flat:
        localsgd.load(folder, flat, other)
    trained(flat, other, 4)
    other.finish()
    return start, values(model), values(flat), (lines + of_flat)


def test_blocks_go_on_in_other_blocks_and_say_what_they_lose(tmp_path: Path) -> None:
    folder = str(tmp_path / "save")
    average = run(4, in_blocks, folder, "2x2")[0]
    (start, end, flat, lines), (_, other_end, other_flat, _) = run(2, in_blocks, folder, "2x1")
    assert_bits(start, average)
    assert_bits(end, other_end)
    assert_bits(flat, other_flat)
    same, fewer = lines
    outermost = "the outermost level's as it was, others reset"
    assert f"outer optimizer, if any: {outermost}; error memory: dropped (norm " in same
    assert "outer optimizer, if any: reset; error memory: dropped (norm " in fewer


def in_other_blocks(folder: str) -> tuple[Any, Any, list[str]]:
    """As many workers in other blocks: each goes on from the averaged model."""
    model, optimizer = made({**BLOCKS, "topology": "2x1"})
    trained(model, optimizer, 5)
    localsgd.save(folder, model, optimizer)
    with optimizer.averaged_model():
        average = values(model)
    model, optimizer = made({**BLOCKS, "topology": "1x2"})
    with told() as lines:
        localsgd.load(folder, model, optimizer)
    start = values(model)
    trained(model, optimizer, 4)
    return average, start, lines


def test_as_many_workers_go_on_in_other_blocks(tmp_path: Path) -> None:
    (average, start, lines), (_, other, _) = run(2, in_other_blocks, str(tmp_path / "save"))
    assert_bits(start, average)
    assert_bits(start, other)
    assert "was saved by 2 workers and is gone on from by 2" in lines[0]


def test_what_is_no_number_must_agree_between_workers() -> None:
    """The lists of L-BFGS are no counters, of which the largest would be taken."""
    own = [{0: {"old_dirs": [torch.full((3,), float(k))], "func_evals": 2 + k}} for k in range(2)]
    mean = regroup.InnerMean()
    mean.add(own[0])
    with pytest.raises(UserError, match="'old_dirs' differs between workers"):
        mean.add(own[1])
    mean = regroup.InnerMean()
    for k in range(2):
        mean.add({0: {"old_dirs": None, "func_evals": 2 + k, "d": torch.full((3,), float(k))}})
    found = mean.mean()[0]
    assert torch.equal(found.pop("d"), torch.full((3,), 0.5))
    assert found == {"old_dirs": None, "func_evals": 3}


def by_hand(states: list[Any]) -> list[torch.Tensor]:
    """Three workers from the mean of two: models and momenta, and a round of 3 in 5 steps."""
    models = [net() for _ in range(3)]
    optimizers = [adam(model) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        mean = {k: torch.stack([s["average"][k] for s in states])[0] for k in states[0]["average"]}
        model.load_state_dict(mean)
        inner = copy.deepcopy({k: v for k, v in states[0]["state"].items() if k != "local_sgd"})
        for parameter, state in inner["state"].items():
            for name in ("exp_avg", "exp_avg_sq"):
                own = [each["state"]["state"][parameter][name] for each in states]
                state[name] = torch.stack(own).mean(0)
        optimizer.load_state_dict(inner)
    torch.manual_seed(0)
    for step in range(STOP, STOP + 5):
        noise = torch.rand(()).double()
        for worker, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            (loss_of(model, worker, step) * noise).backward()
            optimizer.step()
        if (step - STOP) % 3 == 2:
            for parts in zip(*(model.parameters() for model in models), strict=True):
                mean_ = torch.stack([p.detach() for p in parts]).mean(0)
                for part in parts:
                    part.data.copy_(mean_)
    return [p.detach() for model in models for p in model.parameters()]


def plain_regrouped(folder: str) -> list[torch.Tensor]:
    model, optimizer = made({}, adam)
    localsgd.load(f"{folder}/0", model, optimizer)
    torch.manual_seed(0)
    trained(model, optimizer, 5)
    return [p.detach().clone() for p in model.parameters()]


def test_another_number_of_workers_trains_as_by_hand(tmp_path: Path) -> None:
    states = [worker[0] for worker in run(2, parted, str(tmp_path))]
    expected = by_hand(states)
    found = [p for worker in run(3, plain_regrouped, str(tmp_path)) for p in worker]
    for index, (own, hand) in enumerate(zip(found, expected, strict=True)):
        # Adam makes steps of what a bias before batch norm has in place of a gradient of 0.
        most = 1e-8 if index % 6 == 1 else 1e-12
        torch.testing.assert_close(own, hand, rtol=most, atol=most)
