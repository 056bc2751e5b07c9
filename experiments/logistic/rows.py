"""Sparse rows and the four products that logistic regression needs of them. NumPy alone.

n: rows · d: columns · z: stored values
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_DENSE_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Rows:
    """A matrix [n, d] in compressed sparse rows: row i holds `values[starts[i]:starts[i + 1]]`.

    Args:
        starts: [n + 1], ascending from 0 to z.
        columns: [z], ascending within a row.
        values: [z].
        width: d.
    """

    starts: Integers
    columns: Integers
    values: Floats
    width: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def row_of(self) -> Integers:
        """[z], the row of each stored value."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def dot(self, w: Floats) -> Floats:
        """A w, [n], each row summed in the order of its columns."""
        return _sums(self.row_of, self.values * w[self.columns], len(self))

    def transpose_dot(self, s: Floats) -> Floats:
        """A^T s, [d], summed in the order of the rows."""
        return _sums(self.columns, self.values * s[self.row_of], self.width)

    def gram(self, weights: Floats) -> Floats:
        """A^T diag(weights) A, [d, d], for weights >= 0."""
        total = np.zeros((self.width, self.width))
        for first in range(0, len(self), _DENSE_ROWS):
            block = self.dense(first, min(first + _DENSE_ROWS, len(self)))
            block *= np.sqrt(weights[first : first + len(block), None])
            total += block.T @ block
        return total

    def dense(self, first: int = 0, last: int | None = None) -> Floats:
        """Rows `first` to `last` - 1 written out, [last - first, d]."""
        last = len(self) if last is None else last
        here = slice(self.starts[first], self.starts[last])
        block = np.zeros((last - first, self.width))
        block[self.row_of[here] - first, self.columns[here]] = self.values[here]
        return block

    def scaled(self, factors: Floats) -> Rows:
        """Row i times `factors[i]`."""
        return Rows(self.starts, self.columns, self.values * factors[self.row_of], self.width)

    def merged(self) -> tuple[Rows, Integers]:
        """The distinct rows, in the order of their first appearance, and how often each occurs.

        A sum over all rows is a weighted sum over these; of w8a's 49,749 signed rows 34,779 remain.
        """
        first, counts = [], {}
        for row, (lo, hi) in enumerate(zip(self.starts[:-1], self.starts[1:], strict=True)):
            key = self.columns[lo:hi].tobytes() + self.values[lo:hi].tobytes()
            if key not in counts:
                counts[key] = 0
                first.append(row)
            counts[key] += 1
        return self.take(np.asarray(first, dtype=np.int64)), np.array(list(counts.values()))

    def take(self, chosen: Integers) -> Rows:
        """Rows `chosen`, in that order; a row may come more than once."""
        lengths = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        offsets = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        source = np.repeat(self.starts[chosen], lengths) + offsets
        return Rows(starts, self.columns[source], self.values[source], self.width)


def _sums(places: Integers, values: Floats, count: int) -> Floats:
    """[count], the sum of the values at each place, in their order."""
    # Of no values at all bincount makes integers.
    return np.bincount(places, values, minlength=count).astype(np.float64, copy=False)
