from __future__ import annotations

import pytest
import torch

from localsgd.errors import UserError
from localsgd.train.engine.pace import Pace, slowed, weights_of


def test_steps_fit_into_the_time_of_the_fastest() -> None:
    pace = slowed((2.0, 1.0, 1.5, 40.0))
    assert pace.steps(12) == [6, 12, 8, 1]
    assert pace.steps(1) == [1, 1, 1, 1]
    for worker, steps in enumerate(pace.steps(12)):
        assert [pace.active(worker, done, 12) for done in range(12)] == [
            done < steps for done in range(12)
        ]


def test_weights() -> None:
    samples, steps = torch.tensor([100, 300]), [4, 2]
    assert weights_of("equal", samples, steps, torch.float64).tolist() == [0.5, 0.5]
    assert weights_of("samples", samples, steps, torch.float64).tolist() == [0.25, 0.75]
    # τ = 0.25 · 4 + 0.75 · 2 = 2.5
    expected = [0.25 * 2.5 / 4, 0.75 * 2.5 / 2]
    assert weights_of("fednova", samples, steps, torch.float64).tolist() == expected


def test_equal_steps_make_fednova_the_mean_by_samples() -> None:
    samples = torch.tensor([1, 2, 5])
    one, other = (weights_of(w, samples, [7, 7, 7], torch.float64) for w in ("samples", "fednova"))
    torch.testing.assert_close(one, other, rtol=1e-15, atol=0)


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"not all in \(0, 1\]"):
        Pace((0.0, 1.0))
    with pytest.raises(UserError, match="slowdowns"):
        slowed((1.0, -2.0))
