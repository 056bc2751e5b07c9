"""What `--vary` and `--seeds` mean, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from localsgd.errors import UserError
from localsgd.train.config.run import Run
from localsgd.train.config.vary import points, seeds_of


def values(*axes: str) -> list[dict[str, Any]]:
    return [dict(point.values) for point in points(axes)]


def test_axes_make_a_grid_whose_last_one_changes_fastest() -> None:
    assert values("local_steps=1,4", "lr=0.1,0.2") == [
        {"local_steps": (1,), "lr": 0.1},
        {"local_steps": (1,), "lr": 0.2},
        {"local_steps": (4,), "lr": 0.1},
        {"local_steps": (4,), "lr": 0.2},
    ]
    assert values() == [{}]


def test_settings_joined_by_a_slash_make_a_list() -> None:
    assert values("local_steps/lr=1/0.1,16/0.2") == [
        {"local_steps": (1,), "lr": 0.1},
        {"local_steps": (16,), "lr": 0.2},
    ]


@pytest.mark.parametrize(
    ("axis", "found"),
    [
        ("local_steps=2 8,4 4", [(2, 8), (4, 4)]),
        ("inner_state=a=reset,b=reset;", ["a=reset,b=reset"]),
        ("nesterov=true,false", [True, False]),
        ("sign_scales=row,64", ["row", 64]),
        ("lr=None,0.1", [None, 0.1]),
        ("compression=none,None", ["none", None]),
        ("lr_decay_at=0.5 0.75,0.9", [(0.5, 0.75), (0.9,)]),
        ("init=a/b.safetensors", ["a/b.safetensors"]),
    ],
)
def test_values_are_those_of_the_command_line(axis: str, found: list[Any]) -> None:
    name = axis.partition("=")[0]
    assert [each[name] for each in values(axis)] == found


def test_workers_and_topology_give_way_to_each_other() -> None:
    [point] = points(["workers=4"])
    assert point.of(Run(workers=8, topology="4x2")).parsed_topology().workers == 4
    [point] = points(["topology=2x3"])
    assert point.of(Run(workers=8, topology="8")).parsed_topology().workers == 6


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        (["lrr=1"], "unknown setting 'lrr'; nearest: lr"),
        (["mine.norm=0.5,2"], "write options=mine.norm=0.5,..."),
        (["lr"], "'lr' is not understood; write --vary local_steps=1,4,16"),
        (["lr=1,,2"], "'lr=1,,2' is not understood"),
        (["lr=abc"], "--vary lr=abc: give a number, not text"),
        (["lr=0"], "--vary lr=0: give a number > 0"),
        (["lr=nan"], "--vary lr=nan: give a number > 0"),
        (["local_steps=0"], "--vary local_steps=0: give a whole number >= 1"),
        (["compression=zip"], "unknown reducer 'zip'; there are none, "),
        (["outer=zip"], "unknown outer optimizer 'zip'"),
        (["optimizer=zip"], "--vary optimizer=zip: unknown value 'zip'; there are sgd, "),
        (["seed=1,2"], "seeds are given by --seeds"),
        (["lr=1", "lr=2"], "--vary names lr twice"),
        (["lr=0.1,0.2,0.1", "batch=4"], "--vary gives lr=0.1,batch=4 2 times; give each value"),
        (["local_steps/lr=1,2"], "1 has 1 of 2 values; write local_steps/lr="),
    ],
)
def test_mistakes_are_refused_in_one_line(axes: list[str], said: str) -> None:
    with pytest.raises(UserError) as refused:
        points(axes)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_seeds() -> None:
    assert seeds_of(["0..4"]) == (0, 1, 2, 3, 4)
    assert seeds_of(["0", "3,5"]) == (0, 3, 5)
    for wrong in ("4..0", "a", "1..", "0 0", "0..99999"):
        with pytest.raises(UserError, match="--seeds"):
            seeds_of(wrong.split())
