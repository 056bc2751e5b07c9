"""Rows: tensors as views in their own memory format, aligned, with zeros between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from localsgd.errors import UserError
from localsgd.rows.layout import ALIGNMENT, Layout, adopt


def some_tensors() -> list[tuple[str, Tensor]]:
    return [
        ("weight", torch.randn(3, 5)),
        ("bias", torch.randn(3)),
        ("scale", torch.randn(())),
        ("filter", torch.randn(2, 3, 3, 3).contiguous(memory_format=torch.channels_last)),
        ("turned", torch.randn(4, 6).t()),
    ]


def test_tensors_lie_in_their_order_each_at_a_multiple_of_64_bytes() -> None:
    layout = Layout.of(some_tensors())
    assert [(slot.name, slot.offset) for slot in layout.slots] == [
        ("weight", 0),
        ("bias", 16),
        ("scale", 32),
        ("filter", 48),
        ("turned", 112),
    ]
    assert layout.length == 144
    assert ALIGNMENT * 4 == 64


def test_gaps_begin_where_tensors_end() -> None:
    assert Layout.of(some_tensors()).gaps == (15, 19, 33, 102, 136)
    assert Layout.of([("a", torch.ones(16)), ("b", torch.ones(32))]).gaps == ()
    assert Layout.of([("a", torch.ones(16)), ("b", torch.ones(32))], multiple=64).gaps == (48,)
    assert Layout.of([]).gaps == ()
    assert Layout.of(some_tensors()).spare == 15


def test_a_row_is_as_long_as_is_asked() -> None:
    assert Layout.of(some_tensors(), multiple=100).length == 200
    assert Layout.of([], multiple=100).length == 0


def test_views_have_the_shape_and_the_memory_format_of_the_tensors() -> None:
    tensors = some_tensors()
    layout = Layout.of(tensors)
    views = layout.views(layout.rows(3, "cpu")[1])
    for name, tensor in tensors:
        assert views[name].shape == tensor.shape
        assert views[name].stride() == tensor.stride()
    assert views["filter"].is_contiguous(memory_format=torch.channels_last)


def test_views_share_the_memory_of_their_row_and_of_no_other() -> None:
    layout = Layout.of(some_tensors())
    rows = layout.rows(2, "cpu")
    for number, view in enumerate(layout.views(rows[1]).values(), start=1):
        view.fill_(number)
    assert rows[0].eq(0).all()
    counts = [rows[1].eq(number).sum().item() for number in range(6)]
    assert counts == [144 - 15 - 3 - 1 - 54 - 24, 15, 3, 1, 54, 24]


def test_adopting_moves_memory_and_keeps_objects_values_and_formats() -> None:
    tensors = [(name, nn.Parameter(tensor)) for name, tensor in some_tensors()]
    values = {name: tensor.detach().clone() for name, tensor in tensors}
    layout = Layout.of(tensors)
    rows = layout.rows(1, "cpu")
    adopt(layout, rows[0], tensors)
    for name, tensor in tensors:
        assert torch.equal(tensor, values[name])
        assert tensor.stride() == values[name].stride()
        assert tensor.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
        assert tensor.data_ptr() % 64 == 0
    rows.zero_()
    assert all(tensor.eq(0).all() for _, tensor in tensors)


def test_an_adopted_model_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)
    )
    model.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    before = model(x)
    layout = Layout.of(model.named_parameters())
    adopt(layout, layout.rows(1, "cpu")[0], model.named_parameters())
    assert torch.equal(model(x), before)


shapes = st.lists(st.integers(1, 5), max_size=4)


@given(
    st.lists(st.tuples(shapes, st.randoms(use_true_random=False)), max_size=6), st.integers(1, 40)
)
def test_any_dense_tensors_go_in_and_come_out(drawn: list, multiple: int) -> None:
    tensors = []
    for number, (shape, chance) in enumerate(drawn):
        order = list(range(len(shape)))
        chance.shuffle(order)
        tensors.append((str(number), torch.randn(shape).permute(order)))
    layout = Layout.of(tensors, multiple=multiple)
    assert layout.length % multiple == 0
    row = layout.rows(1, "cpu")[0]
    views = layout.views(row)
    for name, tensor in tensors:
        views[name].copy_(tensor)
    for name, tensor in tensors:
        assert torch.equal(views[name], tensor)
        assert views[name].stride() == tensor.stride()
    used = sum(tensor.numel() for _, tensor in tensors)
    assert row.ne(0).sum() <= used


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(3, 1).expand(3, 4), "gaps or overlaps"),
        (torch.zeros(4, 6)[:, ::2], "gaps or overlaps"),
        (torch.zeros(4, 6)[:, :3], "gaps or overlaps"),
        (torch.zeros(12).as_strided((3, 3), (1, 1)), "gaps or overlaps"),
        (torch.eye(3).to_sparse(), "only dense tensors"),
    ],
    ids=["expanded", "every other", "cut", "overlapping", "sparse"],
)
def test_memory_with_gaps_or_overlaps_is_refused_by_name(tensor: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=f"^odd .*{message}"):
        Layout.of([("odd", tensor)])


def test_empty_tensors_and_dimensions_of_one_are_dense() -> None:
    odd = torch.zeros(1, 4).as_strided((1, 4), (99, 1))
    layout = Layout.of([("empty", torch.zeros(3, 0)), ("none", torch.zeros(0, 3)), ("odd", odd)])
    assert [slot.offset for slot in layout.slots] == [0, 0, 0]
    assert layout.views(layout.rows(1, "cpu")[0])["empty"].shape == (3, 0)


def test_two_dtypes_do_not_share_a_row() -> None:
    with pytest.raises(AssertionError, match=r"b is torch\.int64 in a row of torch\.float32"):
        Layout.of([("a", torch.zeros(2)), ("b", torch.zeros(2, dtype=torch.int64))])


def test_fingerprints_tell_what_may_be_averaged() -> None:
    def print_of(
        name: str = "w",
        shape: tuple[int, ...] = (2, 3, 4, 4),
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
        multiple: int = 1,
    ) -> bytes:
        tensor = torch.randn(shape, dtype=dtype).contiguous(memory_format=memory_format)
        return Layout.of([(name, tensor)], multiple=multiple).fingerprint()

    assert print_of() == print_of()
    others = [
        print_of(name="v"),
        print_of(shape=(3, 2, 4, 4)),
        print_of(dtype=torch.float64),
        print_of(memory_format=torch.channels_last),
        print_of(multiple=1000),
    ]
    assert len({print_of(), *others}) == 6
