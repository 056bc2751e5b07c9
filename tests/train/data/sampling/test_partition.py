"""Who owns what: every sample once, sizes and labels as the kind says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.train.data.sampling.order import Order
from localsgd.train.data.sampling.partition import Partition

LABELS = torch.arange(1000) % 10


def parts(text: str, workers: int = 8, seed: int = 0) -> tuple[Tensor, ...]:
    return Partition.parse(text).parts(LABELS, workers, seed)


@pytest.mark.parametrize("text", ["fixed", "by-label", "dirichlet:0.1", "dirichlet:100"])
def test_every_sample_has_one_owner(text: str) -> None:
    owned = parts(text)
    assert sorted(torch.cat(owned).tolist()) == list(range(1000))
    again, other = parts(text), parts(text, seed=1)
    assert all(torch.equal(one, same) for one, same in zip(owned, again, strict=True))
    assert not torch.equal(torch.cat(owned), torch.cat(other))


def test_fixed_and_sorted_parts_differ_by_one_sample_at_most() -> None:
    for text in ("fixed", "by-label"):
        assert sorted({len(own) for own in parts(text, workers=7)}) == [142, 143]


def test_sorted_parts_hold_a_stretch_of_labels() -> None:
    for worker, own in enumerate(parts("by-label", workers=5)):
        assert sorted(set(LABELS[own].tolist())) == [2 * worker, 2 * worker + 1]


def test_a_small_alpha_gives_few_labels_and_a_large_one_all_of_them_alike() -> None:
    def largest_share(text: str) -> float:
        shares = [LABELS[own].bincount(minlength=10).max() / len(own) for own in parts(text)]
        return float(torch.tensor(shares).mean())

    assert largest_share("dirichlet:0.05") > 0.4
    assert largest_share("dirichlet:1000") < 0.15


def test_drawn_parts_of_a_label_are_no_stretches_of_it() -> None:
    """A file that is sorted by something else than labels would be divided by that."""
    one_label = torch.zeros(400, dtype=torch.int64)
    for text in ("dirichlet:100", "by-label", "fixed"):
        for own in Partition.parse(text).parts(one_label, 4, 0):
            assert int(own.max() - own.min()) >= 2 * len(own), text


def test_a_column_names_the_owners(tmp_path: Path) -> None:
    path = tmp_path / "owners.txt"
    path.write_text("".join(f"{i % 3}\n" for i in range(1000)))
    owned = Partition.parse(f"column:{path}").parts(LABELS, 3, 0)
    assert owned[1][:3].tolist() == [1, 4, 7]
    path.write_text("0\n" * 999)
    with pytest.raises(UserError, match="999 lines for 1,000"):
        Partition.parse(f"column:{path}").parts(LABELS, 3, 0)
    path.write_text("3\n" * 1000)
    with pytest.raises(UserError, match="names workers 3 to 3"):
        Partition.parse(f"column:{path}").parts(LABELS, 3, 0)
    path.write_text("x\n" * 1000)
    with pytest.raises(UserError, match="number of a worker"):
        Partition.parse(f"column:{path}").parts(LABELS, 3, 0)


def test_a_worker_reads_its_own_samples_over_and_over() -> None:
    own = (torch.arange(5), torch.arange(5, 20))
    order = Order(20, 2, 3, seed=0, parts=own)
    read = torch.cat([order.indices(0, step) for step in range(10)])
    assert sorted(read[:5].tolist()) == sorted(read[5:10].tolist()) == list(range(5))
    assert len({tuple(read[at : at + 5].tolist()) for at in range(0, 30, 5)}) > 1
    assert sorted(torch.cat([order.indices(1, s) for s in range(5)]).tolist()) == list(range(5, 20))


def test_workers_with_parts_of_one_size_read_them_in_orders_of_their_own() -> None:
    order = Order(40, 2, 10, seed=0, parts=(torch.arange(20), torch.arange(20, 40)))
    first, second = order.owned(0, 0), order.owned(1, 0) - 20
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(20))
    assert not torch.equal(first, second)
    assert not torch.equal(first, order.owned(0, 1))
    other = Order(40, 2, 10, seed=1, parts=order.parts)
    assert not torch.equal(first, other.owned(0, 0))


def test_a_worker_may_own_less_than_a_batch() -> None:
    order = Order(20, 2, 7, seed=0, parts=(torch.arange(3), torch.arange(3, 20)))
    read = torch.cat([order.indices(0, step) for step in range(3)])
    assert read.bincount().tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iid", "unknown partition 'iid'"),
        ("dirichlet", "is not understood"),
        ("dirichlet:0", "dirichlet:0 is invalid"),
        ("fixed:3", "is not understood"),
        ("column:no-such-file", "No such file"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parts(text)


def test_a_worker_with_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="worker 0 of 2 owns no sample"):
        Order(20, 2, 2, seed=0, parts=(torch.arange(0), torch.arange(20)))
