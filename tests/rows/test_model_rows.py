"""Which tensors are synchronised, and what is refused with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from localsgd import LocalSGD, UserError
from localsgd.rows.model_rows import rows_of


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.out = nn.Linear(3, 5)
        self.out.weight = self.embed.weight


def test_a_row_for_each_dtype_tied_once_frozen_not_at_all() -> None:
    model = Tied()
    rows = rows_of(model, sgd(model), 16)
    names = [[slot.name for slot in row.layout.slots] for row in rows]
    assert names == [["scale"], ["embed.weight", "out.bias"]]
    assert model.out.weight is model.embed.weight
    assert [row.values.dtype for row in rows] == [torch.float64, torch.float32]


def tied_by_memory(model: nn.Module) -> None:
    model.out.weight = nn.Parameter(model.embed.weight.data)


def tied_transposed(model: nn.Module) -> None:
    model.out = nn.Linear(5, 3)
    model.out.weight = nn.Parameter(model.embed.weight.data.t())


def kept_in_a_buffer(model: nn.Module) -> None:
    model.register_buffer("last", model.out.bias.data[1:4])


@pytest.mark.parametrize(
    ("alias", "names"),
    [
        (tied_by_memory, "embed.weight and out.weight"),
        (tied_transposed, "embed.weight and out.weight"),
        (kept_in_a_buffer, "out.bias and last"),
    ],
)
def test_tensors_in_the_same_memory_are_refused(
    alias: Callable[[nn.Module], None], names: str
) -> None:
    """A row would part them without a word."""
    model = Tied()
    alias(model)
    with pytest.raises(UserError, match=f"{names} lie in the same memory"):
        rows_of(model, sgd(model), 16)


def test_tensors_side_by_side_and_views_of_frozen_ones_are_no_matter() -> None:
    model: Any = Tied()
    both = torch.ones(4, 6)
    model.left, model.right = nn.Parameter(both[:2]), nn.Parameter(both[2:])
    model.register_buffer("every second", both.clone()[:, ::2])
    model.register_buffer("view", model.frozen.data)
    rows_of(model, sgd(model), 16)
    rows_of(model, sgd(model), 16)  # out of the rows of before


def test_parameters_move_into_the_row_and_keep_value_identity_and_memory_format() -> None:
    model: Any = nn.Conv2d(3, 4, 2)
    model.to(memory_format=torch.channels_last)
    weight, value, stride = model.weight, model.weight.detach().clone(), model.weight.stride()
    (row,) = rows_of(model, sgd(model), 16)
    assert model.weight is weight
    assert torch.equal(weight, value)
    assert weight.stride() == stride
    assert weight.is_contiguous(memory_format=torch.channels_last)
    row.values.zero_()
    assert not weight.any()


def test_the_order_is_the_model_s_and_not_the_optimizer_s() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    inner = torch.optim.SGD([*model[1].parameters(), *model[0].parameters()], lr=0.1)
    (row,) = rows_of(model, inner, 16)
    assert [slot.name for slot in row.layout.slots][:2] == ["0.weight", "0.bias"]


def test_only_the_optimizer_s_tensors() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    (row,) = rows_of(model, sgd(model[1]), 16)
    assert [slot.name for slot in row.layout.slots] == ["1.weight", "1.bias"]


def lazy() -> nn.Module:
    return nn.LazyLinear(2)


def sparse() -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(torch.eye(3).to_sparse())
    return model


def strided() -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(4, 4)[:, :2])
    return model


class Wrapped(torch.Tensor):
    pass


def special() -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(3).as_subclass(Wrapped))
    return model


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: nn.Linear(2, 2, device="meta"), "weight is on the meta device"),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), "only floating parameters"),
        (lazy, "has no shape yet"),
        (sparse, "only dense tensors can be averaged"),
        (strided, "has gaps or overlaps in memory"),
        (special, "weight is a Wrapped"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "no trainable parameter"),
    ],
)
def test_what_cannot_lie_in_a_row(build: Callable[[], nn.Module], reason: str) -> None:
    model = build()
    with pytest.raises(UserError, match=reason):
        LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), model, local_steps=1)


def test_tensors_of_another_model() -> None:
    with pytest.raises(UserError, match="2 of the inner optimizer's 2 trainable tensors are no"):
        LocalSGD(sgd(nn.Linear(2, 2)), nn.Linear(2, 2), local_steps=1)


def test_two_layers_of_local_sgd() -> None:
    model = nn.Linear(2, 2)
    optimizer = LocalSGD(sgd(model), model, local_steps=1)
    with pytest.raises(UserError, match="is a LocalSGD already"):
        LocalSGD(optimizer, model, local_steps=1)


@pytest.mark.parametrize("move", ["double", "bfloat16"])
def test_a_model_that_is_converted_later(move: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = LocalSGD(sgd(model), model, local_steps=1)
    getattr(model, move)()
    with pytest.raises(UserError, match="weight has been given other memory"):
        optimizer.step()


def test_a_model_whose_weights_are_replaced() -> None:
    model = nn.Linear(2, 2)
    optimizer = LocalSGD(sgd(model), model, local_steps=1)
    model.load_state_dict(nn.Linear(2, 2).state_dict())  # copies, as it should
    optimizer.step()
    model.load_state_dict(nn.Linear(2, 2).state_dict(), assign=True)
    with pytest.raises(UserError, match="another tensor for weight"):
        optimizer.step()


def test_a_model_that_is_parametrized_later() -> None:
    model = nn.Linear(2, 2)
    optimizer = LocalSGD(sgd(model), model, local_steps=1)
    nn.utils.parametrizations.weight_norm(model)
    with pytest.raises(UserError, match="has no weight of its own any more"):
        optimizer.step()
