"""Four gloo processes against K models in a list, for every way of nesting and averaging."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import localsgd
from localsgd import LocalSGD
from tests.distributed.harness import run
from tests.optimizer.reference import (
    assert_bits,
    assert_same,
    loss_of,
    nesterov,
    net,
    reference,
    values,
)

FLAT = [[0, 1, 2, 3]]
PAIRS = [[0, 1], [2, 3]]
UNEQUAL = [[0], [1, 2, 3]]

CASES: dict[str, tuple[dict[str, Any], str, list, list]] = {
    "local": ({"local_steps": 3}, "...1...1..", [FLAT], []),
    "mini-batch": ({"local_steps": 1}, ".........", [FLAT], FLAT),
    "mini-batch on models": (
        {"local_steps": 1, "average": "models"},
        ".1.1.1.1.1.1.1.1.1",
        [FLAT],
        [],
    ),
    "hierarchical": (
        {"local_steps": [2, 2], "topology": "2x2"},
        "..1..2..1..2.",
        [PAIRS, FLAT],
        [],
    ),
    "blocks share gradients": (
        {"local_steps": [1, 3], "topology": "2x2"},
        "...2...2..",
        [PAIRS, FLAT],
        PAIRS,
    ),
    "mini-batch in blocks": (
        {"local_steps": [1, 1], "topology": "2x2"},
        ".....",
        [PAIRS, FLAT],
        FLAT,
    ),
    "mini-batch in unequal blocks": (
        {"local_steps": [1, 1], "topology": "1+3"},
        ".....",
        [UNEQUAL, FLAT],
        FLAT,
    ),
    "unequal blocks": (
        {"local_steps": [2, 2], "topology": "1+3"},
        "..1..2..1..2.",
        [UNEQUAL, FLAT],
        [],
    ),
    "unequal blocks share gradients": (
        {"local_steps": [1, 2], "topology": "1+3"},
        "..2..2..2.",
        [UNEQUAL, FLAT],
        UNEQUAL,
    ),
    "one block after the other": (
        {"local_steps": [2, 2], "topology": "4x1", "average": "models"},
        "....2....2.",
        [[[0], [1], [2], [3]], FLAT],
        [],
    ),
}


def train(keywords: dict[str, Any], steps: int, wrapped: bool = False) -> dict[str, Any]:
    """What this rank holds after `steps` steps: its own, averaged, and in the end."""
    rank = dist.get_rank()
    module = net()
    model = DistributedDataParallel(module) if wrapped else module
    optimizer = LocalSGD(nesterov(module), model, **keywords)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
    own = values(module)
    with optimizer.averaged_model():
        averaged = values(module)
    untouched = values(module)
    optimizer.finish()
    return {"own": own, "averaged": averaged, "untouched": untouched, "finished": values(module)}


def train_all(wrapped: bool) -> list[dict[str, Any]]:
    return [
        train(keywords, picture.count("."), wrapped) for keywords, picture, _, _ in CASES.values()
    ]


@pytest.fixture(scope="module")
def plain() -> list[list[dict[str, Any]]]:
    return run(4, train_all, False)


@pytest.fixture(scope="module")
def wrapped() -> list[list[dict[str, Any]]]:
    return run(4, train_all, True)


@pytest.mark.parametrize("case", range(len(CASES)), ids=list(CASES))
def test_each_rank_is_a_worker_of_the_reference(case: int, plain: list) -> None:
    _, picture, groups, shared = list(CASES.values())[case]
    expected = reference(picture, groups, shared=shared)
    for rank, model in enumerate(expected):
        assert_same(plain[rank][case]["own"], values(model))


@pytest.mark.parametrize("case", range(len(CASES)), ids=list(CASES))
def test_it_is_the_same_under_ddp(case: int, plain: list, wrapped: list) -> None:
    for rank in range(4):
        for moment in ("own", "averaged", "finished"):
            assert_same(wrapped[rank][case][moment], plain[rank][case][moment])


@pytest.mark.parametrize("case", range(len(CASES)), ids=list(CASES))
def test_the_averaged_model_is_the_mean_of_all(case: int, plain: list) -> None:
    ranks = [plain[rank][case] for rank in range(4)]
    expected = {
        name: torch.stack([rank["own"][name].double() for rank in ranks]).mean(0)
        for name in ranks[0]["own"]
    }
    expected = {name: mean.to(ranks[0]["own"][name]) for name, mean in expected.items()}
    means = torch.stack([rank["own"]["1.running_mean"] for rank in ranks])
    expected["1.running_var"] += means.var(0, correction=0)
    for rank in ranks:
        assert_same(rank["averaged"], expected)
        assert_bits(rank["averaged"], ranks[0]["averaged"])
        assert_bits(rank["untouched"], rank["own"])
        assert_same(rank["finished"], expected)


def test_one_number_for_several_levels_is_refused() -> None:
    model = net()
    with pytest.raises(localsgd.UserError, match="has 4 workers for 1 process;"):
        LocalSGD(nesterov(model), model, local_steps=4, topology="2x2")
