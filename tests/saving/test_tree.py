"""Trees of tensors: what comes back is what was packed, and no file chooses code."""

from __future__ import annotations

import doctest
from collections import Counter, OrderedDict
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch

from localsgd import UserError
from localsgd.saving import tree
from localsgd.saving.tree import as_tensor, as_text, pack, unpack


class Colour(IntEnum):
    RED = 3


def test_examples_run() -> None:
    assert doctest.testmod(tree).failed == 0


def round_trip(value: Any) -> Any:
    tensors, text = pack(value, "x")
    return unpack(as_text(as_tensor(text)), tensors)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7,
        0.1 + 0.2,
        float("inf"),
        "ä\n",
        [],
        (1, (2.5, [None])),
        {0: {"a": 1}, "0": 2, None: 3, 1.5: 4, True: 5, "b": ()},
        OrderedDict(b=1, a=2),
        Counter({3: 2}),
    ],
)
def test_plain_values_come_back_with_their_types(value: Any) -> None:
    found = round_trip(value)
    assert found == value
    assert repr(found) == repr(value)


def test_tensors_and_arrays_come_back() -> None:
    value = {
        1: torch.ones(2),
        "1": torch.zeros(3),
        "a": (np.arange(3), np.float64(0.5), Colour.RED),
    }
    tensors, _ = pack(value, "x")
    assert list(tensors) == ["x/1", "x/1'", "x/a/0"]
    found = round_trip(value)
    assert torch.equal(found[1], value[1])
    assert torch.equal(found["1"], value["1"])
    array, number, colour = found["a"]
    assert array.tolist() == [0, 1, 2]
    assert (number, colour) == (0.5, 3)
    assert type(colour) is int


@pytest.mark.parametrize("value", [print, {1, 2}, 1j, b"x", object(), {(1, 2): 3}])
def test_anything_else_is_refused_in_one_line(value: Any) -> None:
    with pytest.raises(UserError) as caught:
        pack({"a": value}, "x")
    assert "can't be saved without code in the file" in str(caught.value)
    assert "\n" not in str(caught.value)
