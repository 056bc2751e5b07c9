from __future__ import annotations

import pytest
import torch

from localsgd.errors import UserError
from localsgd.reduce import TopK
from localsgd.reduce.compressor import decode, encode
from localsgd.reduce.extents import Extents

X = torch.tensor([0.5, -3.0, 0.0, 2.0, -1.0])


def test_the_largest_as_they_are() -> None:
    codec = TopK(0.3).codec(Extents.whole(5), X.dtype)
    assert codec.k == 2  # rounded up
    assert decode(codec, encode(codec, X), X).tolist() == [0, -3, 0, 2, 0]


@pytest.mark.parametrize(
    ("share", "n", "k"),
    [
        (0.07, 100, 7),
        (0.55, 100, 55),
        (1e-12, 10, 1),
        (0.07, 10**8, 7 * 10**6),
        (5 / 6, 6, 5),
        (1 / 11, 11, 1),
        (0.501, 2, 2),
    ],
)
def test_k_is_not_off_by_one_where_a_product_rounds_up(share: float, n: int, k: int) -> None:
    assert TopK(share).codec(Extents.whole(n), torch.float32).k == k


@pytest.mark.parametrize(("n", "share", "bitmap"), [(31, 1 / 31, False), (320, 0.1, True)])
def test_places_are_written_the_shorter_way(n: int, share: float, bitmap: bool) -> None:
    codec = TopK(share).codec(Extents.whole(n), torch.float32)
    assert codec.as_bitmap is bitmap
    assert codec.size == 4 * codec.k + min(4 * codec.k, -(-n // 8))
    x = torch.zeros(n)
    x[-1] = -7
    assert torch.equal(decode(codec, encode(codec, x), x), x)


@pytest.mark.parametrize(
    ("share", "says"), [(0, r"nothing \(k = 0\)"), (-1, "nothing"), (1.5, "more than there is")]
)
def test_shares_that_cannot_be_are_refused(share: float, says: str) -> None:
    with pytest.raises(UserError, match=says):
        TopK(share)
