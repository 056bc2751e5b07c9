"""Sparse rows as SciPy has them, and two things that it lacks for logistic regression.

n: rows · u: distinct rows · d: columns
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_DENSE_ROWS = 4096


def gram(rows: csr_array, weights: Floats) -> Floats:
    """A^T diag(weights) A, [d, d], for weights >= 0."""
    total = np.zeros((rows.shape[1],) * 2)
    for first in range(0, rows.shape[0], _DENSE_ROWS):
        block = rows[first : first + _DENSE_ROWS].toarray()
        block *= np.sqrt(weights[first : first + _DENSE_ROWS, None])
        total += block.T @ block
    return total


def merged(rows: csr_array) -> tuple[csr_array, Floats]:
    """The distinct rows [u, d], in the order of their first appearance, and how often each occurs.

    A sum over all rows is a weighted sum over these; of w8a's 49,749 signed rows 34,779 remain.
    """
    first: list[int] = []
    counts: dict[bytes, int] = {}
    for row, (lo, hi) in enumerate(zip(rows.indptr[:-1], rows.indptr[1:], strict=True)):
        key = rows.indices[lo:hi].tobytes() + rows.data[lo:hi].tobytes()
        if key not in counts:
            counts[key] = 0
            first.append(row)
        counts[key] += 1
    return rows[first], np.array([*counts.values()], np.float64)
