"""A small problem for the convex study."""

from __future__ import annotations

import pytest

from experiments.convex.job import made
from experiments.logistic import Logistic


@pytest.fixture(scope="session")
def problem() -> Logistic:
    return made()
