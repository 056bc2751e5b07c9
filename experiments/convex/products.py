"""The two sparse products of a local step, in place, without a SciPy object for each batch.

A batch of a few rows takes SciPy's own loops a few microseconds and its matrix objects a hundred.
The loops are called directly where SciPy offers them under the names that they have had since 2009,
and through `csr_array` otherwise.

N: rows of the batch · D: its columns, d or K d · R: runs
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from experiments.logistic.rows import Floats

try:
    from scipy.sparse._sparsetools import csc_matvecs, csr_matvecs
except ImportError:  # a private module: it may go
    csc_matvecs = csr_matvecs = None


class Batch(NamedTuple):
    """A sparse matrix [N, D] by rows, as in `csr_array`, of which it is a view."""

    starts: np.ndarray
    columns: np.ndarray
    values: Floats
    width: int


def multiply(batch: Batch, models: Floats) -> Floats:
    """C W, [N, R], for models W [D, R]."""
    if csr_matvecs is None:
        return as_array(batch) @ models
    count, runs = len(batch.starts) - 1, models.shape[1]
    product = np.zeros((count, runs))
    csr_matvecs(count, batch.width, runs, *batch[:3], models.reshape(-1), product.reshape(-1))
    return product


def add_transposed(batch: Batch, pulls: Floats, models: Floats) -> None:
    """W <- W + C^T S in place, for S [N, R] and contiguous W [D, R]; the batch's rows in order."""
    if csc_matvecs is None:
        models += as_array(batch).T @ pulls
        return
    count, runs = pulls.shape
    # The rows of C are the columns of C^T: the same three arrays, read the other way.
    csc_matvecs(batch.width, count, runs, *batch[:3], pulls.reshape(-1), _flat(models))


def as_array(batch: Batch) -> csr_array:
    """The batch as SciPy's matrix."""
    parts = (batch.values, batch.columns, batch.starts)
    return csr_array(parts, shape=(len(batch.starts) - 1, batch.width))


def _flat(models: Floats) -> Floats:
    if not models.flags.c_contiguous:
        raise ValueError("models must be contiguous: they are written in place")
    return models.reshape(-1)
