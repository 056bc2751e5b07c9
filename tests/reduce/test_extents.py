from __future__ import annotations

import pytest
import torch

from localsgd.reduce.extents import Extents, parts
from localsgd.rows.layout import Layout

ROW = Extents(64, ((0, 20, "a"), (32, 37, "b"), (48, 50, "c")))  # type: ignore[arg-type]


def test_are_the_tensors_of_a_layout_but_for_empty_ones() -> None:
    tensors = [("a", torch.empty(4, 5)), ("none", torch.empty(0)), ("b", torch.empty(5))]
    row = Extents.of(Layout.of(tensors, multiple=64))
    assert row == Extents(64, ((0, 20, "a"), (32, 37, "b")))  # type: ignore[arg-type]
    assert row.scalars == 25


def test_a_part_counts_from_its_start() -> None:
    assert ROW.part(16, 40).fragments == ((0, 4, "a"), (16, 21, "b"))
    assert ROW.part(40, 48) == Extents(8, ())


def test_split_at_multiples_of_the_vector() -> None:
    pieces = [(0, 16, "a"), (16, 20, "a"), (32, 37, "b"), (48, 50, "c")]
    assert list(ROW.split(16)) == pieces


def test_names() -> None:
    assert ROW.names(19, 33) == "a or b"
    assert ROW.names(20, 32) == "padding"


@pytest.mark.parametrize("n", [0, 1, 8, 61, 64, 65])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_parts_cover_a_vector_in_whole_bytes(n: int, count: int) -> None:
    length, cut = parts(Extents.whole(n), count)
    assert len(cut) == count
    assert length % 8 == 0
    assert length * count < n + 8 * count
    assert sum(part.length for part in cut) == n
    assert all(part.length == length for part in cut[: n // length if length else 0])
    assert sum(part.scalars for part in cut) == n
