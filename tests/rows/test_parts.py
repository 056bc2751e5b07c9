"""Tensors of every kind, taken apart without a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from localsgd.rows.parts import bytes_of, digest_of_tensors, is_plain, once

NESTED = [torch.ones(2), torch.ones(3)]
ODD: dict[str, Callable[[float], Tensor]] = {
    "coo": lambda x: (torch.eye(3) * x).to_sparse(),
    "csr": lambda x: (torch.eye(3) * x).to_sparse_csr(),
    "csc": lambda x: (torch.eye(3) * x).to_sparse_csc(),
    "bsr": lambda x: (torch.eye(4) * x).to_sparse_bsr((2, 2)),
    "quantised": lambda x: torch.quantize_per_tensor(torch.ones(3) * x, 0.1, 0, torch.qint8),
    "by channel": lambda x: torch.quantize_per_channel(
        torch.ones(2, 3) * x, torch.tensor([0.1, 0.2]), torch.tensor([0, 0]), 0, torch.qint8
    ),
    "nested": lambda x: torch.nested.nested_tensor([part * x for part in NESTED]),
    "jagged": lambda x: torch.nested.nested_tensor(
        [part * x for part in NESTED], layout=torch.jagged
    ),
    "overlapping": lambda x: (torch.ones(4) * x).unfold(0, 3, 1),
}
PLAIN: dict[str, Callable[[float], Tensor]] = {
    "dense": lambda x: torch.ones(3) * x,
    "scalar": lambda x: torch.tensor(x),
    "empty": lambda x: torch.zeros(0),
    "gaps": lambda x: (torch.ones(4, 4) * x)[:, ::2],
    "expanded": lambda x: torch.tensor([[x], [2.0]]).expand(2, 3),
    "conjugated": lambda x: torch.tensor([1j * x]).conj(),
    "negative": lambda x: torch.tensor([1j * x]).conj().imag,
    "bool": lambda x: torch.tensor([x > 1, True]),
    "bfloat16": lambda x: torch.ones(3, dtype=torch.bfloat16) * x,
    "float8": lambda x: (torch.ones(3) * x).to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("kind", {**ODD, **PLAIN})
@pytest.mark.filterwarnings("ignore")  # Some layouts are prototypes.
def test_digests_tell_values_of_every_kind_apart(kind: str) -> None:
    make = {**ODD, **PLAIN}[kind]
    assert is_plain(make(1.0)) == (kind in PLAIN)

    def digest(x: float) -> bytes:
        return digest_of_tensors([("a", make(x))])

    assert digest(1.0) == digest(1.0)
    assert kind == "empty" or digest(1.0) != digest(3.0)


def test_a_tensor_may_be_resized_after_its_digest() -> None:
    tensor = torch.zeros(2)
    digest_of_tensors([("a", tensor)])
    tensor.resize_(1000)


def test_the_bytes_of_a_view_are_its_values_in_order() -> None:
    view = torch.arange(6.0).view(2, 3).t()
    assert torch.equal(bytes_of(view).view(torch.float32), view.flatten())
    assert bytes_of(torch.ones(1).expand(1)).tolist() == [0, 0, 128, 63]


def test_an_expanded_tensor_has_each_place_once() -> None:
    base = torch.tensor([[1.0], [2.0]])
    spread: Any = base.expand(2, 3)
    assert once(spread).shape == (2, 1)
    once(spread).fill_(5)
    assert base.tolist() == [[5.0], [5.0]]
