"""f(w) = 1/n sum_i log(1 + exp(-b_i a_i.w)) + lambda/2 |w|^2, b_i in {-1, +1}, no intercept.

It is written with signed rows c_i = -b_i a_i, so that f(w) = 1/n sum_i log(1 + exp(c_i.w)) +
lambda/2 |w|^2 and the gradient of one loss is sigma(c_i.w) c_i.

n: rows · u: distinct rows · d: features
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from experiments.logistic.libsvm import Examples, find, read
from experiments.logistic.rows import Floats, Integers, gram, merged
from localsgd.errors import UserError


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


@dataclass(frozen=True, eq=False)
class Logistic:
    """Regularised logistic regression on all rows of a data set.

    Args:
        signed: [n, d], the rows c_i = -b_i a_i.
        regularisation: lambda >= 0.
    """

    signed: csr_array
    regularisation: float

    @staticmethod
    def of(examples: Examples, regularisation: float | None = None) -> Logistic:
        """The problem on `examples`; lambda = 1/n unless said (Lin et al. 2020, appendix)."""
        signed = examples.rows.copy()
        signed.data *= np.repeat(np.where(examples.positive, -1.0, 1.0), np.diff(signed.indptr))
        if regularisation is None:
            regularisation = 1 / signed.shape[0]
        if not 0 <= regularisation < np.inf:
            raise UserError(f"regularisation {regularisation} can't be; give a number >= 0")
        return Logistic(signed, regularisation)

    @staticmethod
    def load(
        name: str, data_dir: Path | None = None, regularisation: float | None = None
    ) -> Logistic:
        """The problem on LIBSVM's data set `name`, looked for in the data folders."""
        return Logistic.of(read(find(name, data_dir)), regularisation)

    @property
    def examples(self) -> int:
        """n."""
        return self.signed.shape[0]

    @property
    def features(self) -> int:
        """d."""
        return self.signed.shape[1]

    @cached_property
    def merged(self) -> tuple[csr_array, Floats]:
        """Distinct signed rows [u, d] and how often each occurs [u], for weighted sums."""
        return merged(self.signed)

    def value(self, w: Floats) -> float:
        """f(w)."""
        rows, counts = self.merged
        loss = np.sum(counts * np.logaddexp(0.0, rows @ w)) / self.examples
        return float(loss + self.regularisation / 2 * (w @ w))

    def gradient(self, w: Floats) -> Floats:
        """Its gradient, [d]."""
        rows, counts = self.merged
        total = rows.T @ (counts * sigmoid(rows @ w))
        return total / self.examples + self.regularisation * w

    def hessian(self, w: Floats) -> Floats:
        """Its Hessian, [d, d]."""
        rows, counts = self.merged
        x = rows @ w
        total = gram(rows, counts * sigmoid(x) * sigmoid(-x))
        return total / self.examples + self.regularisation * np.eye(self.features)

    def smoothness(self) -> float:
        """L, the largest eigenvalue of A^T A / (4 n): bounds the curvature without lambda."""
        rows, counts = self.merged
        return float(np.linalg.eigvalsh(gram(rows, counts))[-1] / (4 * self.examples))

    def batch_gradient(self, w: Floats, batch: Integers) -> Floats:
        """Mean gradient over the rows `batch` [B], which may repeat, lambda included, [d]."""
        rows = self.signed[batch]
        return rows.T @ sigmoid(rows @ w) / len(batch) + self.regularisation * w
