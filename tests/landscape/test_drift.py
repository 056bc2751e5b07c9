"""Drift of workers whose distances and angles can be seen by eye."""

from __future__ import annotations

import pytest
import torch

from localsgd.errors import UserError
from localsgd.landscape import DriftHistory, cosine_of, drift


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_two_workers_at_a_right_angle() -> None:
    found = drift(rows([3.0, 0.0], [0.0, 3.0]), rows([0.0, 0.0])[0])
    assert found.updates == pytest.approx((3, 3))
    assert found.between == pytest.approx(18**0.5)
    assert found.to_mean == pytest.approx((4.5**0.5, 4.5**0.5))
    assert found.mean_update == pytest.approx(4.5**0.5)
    assert found.cosine == pytest.approx(0, abs=1e-15)
    assert found.alignment == pytest.approx(0.5)


def test_workers_that_average_and_workers_that_cancel() -> None:
    same = drift(rows([1.0, 2.0], [1.0, 2.0]), rows([0.0, 0.0])[0])
    assert (same.cosine, same.alignment, same.between) == (pytest.approx(1), pytest.approx(1), 0)
    apart = drift(rows([1.0, 0.0], [-1.0, 0.0]), rows([0.0, 0.0])[0])
    assert (apart.cosine, apart.alignment) == (pytest.approx(-1), 0)


def test_one_worker_and_no_move() -> None:
    alone = drift(rows([1.0, 0.0]), rows([0.0, 0.0])[0])
    assert (alone.cosine, alone.between, alone.to_mean) == (None, 0, (0,))
    still = drift(rows([1.0, 0.0], [1.0, 0.0]), rows([1.0, 0.0])[0])
    assert (still.cosine, still.alignment) == (None, None)


def test_history_has_the_angle_between_rounds() -> None:
    history = DriftHistory()
    anchor = torch.zeros(2, dtype=torch.float64)
    first = history.observe(rows([1.0, 0.0], [1.0, 0.0]), anchor, step=4)
    assert (first["between_rounds"], first["step"]) == (None, 4)
    second = history.observe(rows([0.0, 2.0], [0.0, 4.0]), anchor, step=8)
    assert second["between_rounds"] == pytest.approx(0, abs=1e-15)
    third = history.observe(rows([0.0, -2.0], [0.0, -2.0]), anchor, step=12)
    assert third["between_rounds"] == pytest.approx(-1)


def test_cosine_of_nothing() -> None:
    assert cosine_of(torch.zeros(2), torch.ones(2)) is None


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(UserError, match=r"\[2, 2\] .* \[3\]"):
        drift(torch.zeros(2, 2), torch.zeros(3))
