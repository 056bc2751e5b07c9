"""Real data where it is at hand, and a small problem."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from experiments.logistic import Examples, Logistic, find, read
from localsgd.errors import UserError


@pytest.fixture(scope="session")
def small() -> Logistic:
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((200, 6)) < 0.4, rng.normal(size=(200, 6)), 0.0)
    return Logistic.of(Examples(csr_array(dense), rng.random(200) < 0.4, (0.0, 1.0)))


# Before any test hides the environment.
_DATA = Path(os.environ.get("LOCALSGD_DATA", "data"))


@cache
def _read(name: str) -> Examples:
    return read(find(name, _DATA), features=123 if name.startswith("a9a") else None)


@pytest.fixture(scope="session")
def real() -> Callable[[str], Examples]:
    """Reads a data set of LIBSVM by name; skips where it isn't there."""

    def load(name: str) -> Examples:
        try:
            return _read(name)
        except UserError as error:
            pytest.skip(str(error))

    return load
