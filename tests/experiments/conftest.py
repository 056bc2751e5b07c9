"""A small problem for the convex study."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.logistic import Examples, Logistic, Rows


@pytest.fixture(scope="session")
def problem() -> Logistic:
    """300 sparse binary rows of 20 features, a fifth positive, some equal, some empty."""
    rng = np.random.default_rng(0)
    dense = (rng.random((300, 20)) < 0.12).astype(float)
    positive = dense @ rng.normal(size=20) + rng.normal(size=300) > 1.2
    columns = np.nonzero(dense)[1]
    starts = np.concatenate([[0], np.cumsum(dense.sum(axis=1))]).astype(np.int64)
    rows = Rows(starts, columns, dense[dense > 0], 20)
    return Logistic.of(Examples(rows, positive, (-1.0, 1.0)))
