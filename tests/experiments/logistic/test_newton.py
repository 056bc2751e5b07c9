"""The minimum, and that it is computed once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from experiments.logistic import Examples, Logistic, Minimum, known_minimum, minimise, newton
from experiments.logistic.newton import NoMinimum


@pytest.mark.parametrize(
    ("name", "minimum"),
    [
        ("w8a", 0.126180686510513),
        ("a9a", 0.323379582464847),
        ("a9a.t", 0.320554501720575),
    ],
)
def test_minimum_of_real_data(real, name: str, minimum: float) -> None:
    found = minimise(Logistic.of(real(name)))
    assert abs(found.value - minimum) < 1e-13
    assert found.gradient_norm < 3e-16


def test_no_direction_leads_further_down(small: Logistic) -> None:
    found = minimise(small)
    assert found.gradient_norm < 1e-15
    assert found.value < small.value(np.zeros(small.features))
    # The same by plain gradient descent.
    w = np.zeros(small.features)
    size = 1 / (small.smoothness() + small.regularisation)
    for _ in range(2000):
        w -= size * small.gradient(w)
    assert found.value == pytest.approx(small.value(w), abs=1e-14)


def test_damps_steps_that_would_overshoot() -> None:
    """A full step from 1 lands higher on these steep rows; the damped one lower."""
    rows = csr_array(np.array([[1.0], [40.0], [-1.0]]))
    problem = Logistic.of(Examples(rows, np.array([True, False, True]), (0.0, 1.0)), 1e-6)
    w = np.array([1.0])
    step = np.asarray(-np.linalg.solve(problem.hessian(w), problem.gradient(w)), np.float64)
    size = newton._damping(problem, w, step, float(step @ problem.gradient(w)))
    assert problem.value(w + step) > problem.value(w) > problem.value(w + size * step)
    assert minimise(problem).gradient_norm < 1e-12


def test_says_when_there_is_no_minimum() -> None:
    rows = csr_array(np.array([[-1.0]]))
    with pytest.raises(NoMinimum, match="lambda > 0"):
        minimise(Logistic(rows, 0.0), most_steps=20)


def test_is_kept_and_found_again(
    small: Logistic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = known_minimum(small, tmp_path)
    assert first == minimise(small)
    assert len(list(tmp_path.glob("minimum-*.json"))) == 1
    monkeypatch.setattr(newton, "minimise", None)
    assert known_minimum(small, tmp_path) == first
    other = Logistic(small.signed, 0.125)
    with pytest.raises(TypeError):
        known_minimum(other, tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"value": "low"}',
        b'{"value": 1.0}',
        b'{"x": ' + b"[" * 100_000,
        b'{"\xff": 1}',
    ],
)
def test_a_damaged_file_is_replaced(small: Logistic, tmp_path: Path, content: bytes) -> None:
    first = known_minimum(small, tmp_path)
    (path,) = tmp_path.glob("minimum-*.json")
    path.write_bytes(content)
    assert known_minimum(small, tmp_path) == first
    assert Minimum(**json.loads(path.read_text())) == first
