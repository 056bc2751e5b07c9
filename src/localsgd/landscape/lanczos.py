"""Extreme eigenvalues by Lanczos with full re-orthogonalisation.

Block Lanczos in Rayleigh-Ritz form with thick restarts (Golub and Underwood 1977; Wu and Simon
2000): each new block is projected off the whole basis twice more, so no orthogonality is lost and
no spurious copies appear. A single start vector sees one copy of a multiple eigenvalue; a block of
p sees up to p.

Letters: n dimension, m basis vectors, p block size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.landscape.announce import Progress, silent
from localsgd.landscape.operator import Counted, Operator, gaussian, seeded
from localsgd.landscape.spectrum import Spectrum


def lanczos(
    operator: Operator,
    top: int = 10,
    bottom: int = 0,
    *,
    tolerance: float = 1e-3,
    block: int = 1,
    max_products: int = 500,
    max_basis: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Spectrum:
    """The `top` largest and `bottom` smallest eigenvalues (by value, not by magnitude).

    Stops when each wanted residual ||A v - t v|| <= tolerance * max(|t|, 0.01 max|t|); the error of
    t is at most the residual, and at most residual^2 / gap. What has not converged after
    `max_products` is returned and marked so.

    Args:
      block: vectors multiplied at once, and copies of a multiple eigenvalue that can be found.
      max_basis: vectors [n] held; by default enough for 4 (top + bottom), at least 60.
    """
    top, bottom = _wanted(top, bottom, operator.n)
    counted = Counted(operator)
    room = max(60, 4 * (top + bottom)) + block if max_basis is None else max_basis
    if room < top + bottom + 2 * block:
        raise UserError(
            f"a basis of {room} cannot hold {top + bottom} eigenvectors and {2 * block} new ones; "
            f"give max_basis={top + bottom + 2 * block} or more"
        )
    basis = _Basis.start(counted, min(room, operator.n), block, seed)
    while True:
        ritz = basis.extend(counted, top, bottom)
        done = ritz.met(tolerance) if basis.m < operator.n else torch.ones_like(ritz.values).bool()
        progress("Lanczos", int(done.sum()), len(done))
        if bool(done.all()) and len(done) == top + bottom:
            break
        if counted.products + block > max_products:
            break
        basis.restart_if_full()
    return Spectrum(
        values=tuple(ritz.values.tolist()),
        residuals=tuple(ritz.residuals.tolist()),
        converged=tuple(done.tolist()),
        products=counted.products,
        method="lanczos",
        vectors=basis.combine(ritz.coefficients),
    )


def _wanted(top: int, bottom: int, n: int) -> tuple[int, int]:
    if top < 0 or bottom < 0 or top + bottom == 0:
        raise UserError(f"asked for top={top} and bottom={bottom} eigenvalues; ask for at least 1")
    top = min(top, n)
    return top, min(bottom, n - top)


@dataclass(frozen=True)
class _Ritz:
    """Wanted pairs: values and residuals [k], falling; coefficients [m, k] in the basis."""

    values: Tensor
    residuals: Tensor
    coefficients: Tensor

    def met(self, tolerance: float) -> Tensor:
        size = self.values.abs()
        return self.residuals <= tolerance * torch.maximum(size, 0.01 * size.max())


class _Basis:
    """Orthonormal rows [m, n], the projected matrix [m, m], and the next block."""

    def __init__(self, rows: Tensor, block: Tensor, generator: torch.Generator):
        self.rows, self.next, self.generator = rows, block, generator
        room = rows.shape[0]
        self.projected = torch.zeros(room, room, dtype=torch.float64)
        self.m = 0
        self._ritz: tuple[Tensor, Tensor, list[int]] | None = None

    @classmethod
    def start(cls, operator: Operator, room: int, block: int, seed: int) -> _Basis:
        generator = seeded(seed)
        rows = operator.like.new_empty(room, operator.n)
        first = gaussian(operator, min(block, room), generator)
        return cls(rows, torch.linalg.qr(first.T)[0].T.contiguous(), generator)

    def extend(self, operator: Operator, top: int, bottom: int) -> _Ritz:
        """Multiplies the next block, projects, and returns the wanted Ritz pairs."""
        p, old = self.next.shape[0], self.m
        self.rows[old : old + p] = self.next
        self.m = m = old + p
        images = operator.apply(self.next)
        scale = float(images.norm()) or 1.0
        rows = self.rows[:m]
        part = rows @ images.T  # [m, p]
        images = images - part.T @ rows
        column = part.double().cpu()
        self.projected[:m, old:m] = column
        self.projected[old:m, :m] = column.T
        corner = self.projected[old:m, old:m]
        self.projected[old:m, old:m] = (corner + corner.T) / 2
        coupling = self._advance(operator, images, scale)
        values, vectors = torch.linalg.eigh(self.projected[:m, :m])
        chosen = _ends(m, top, bottom)
        self._ritz = values, vectors, chosen
        last = vectors[old:m][:, chosen]
        return _Ritz(values[chosen], (coupling @ last).norm(dim=0), vectors[:, chosen])

    def _advance(self, operator: Operator, images: Tensor, scale: float) -> Tensor:
        """Orthonormalise what is left of A times the last block; give its coupling [p', p].

        A direction that is left at rounding level (an invariant subspace is complete) is replaced
        by a random one, which no longer couples.
        """
        q, r = torch.linalg.qr(images.T)
        room = min(q.shape[1], operator.n - self.m)
        small = r.diagonal().abs() <= 100 * torch.finfo(r.dtype).eps * scale
        if bool(small.any()):
            order = small.long().argsort(stable=True)  # random ones last: they give way to others
            q, r, small = q[:, order], r[order], small[order]
            q[:, small] = gaussian(operator, int(small.sum()), self.generator).T
            r[small] = 0
        block = q.T
        for _ in range(2):
            rows = self.rows[: self.m]
            block = block - (block @ rows.T) @ rows
            block = torch.linalg.qr(block.T)[0].T
        signs = (block * q.T).sum(1).sign()
        self.next = (block * torch.where(signs == 0, 1.0, signs).unsqueeze(1))[:room].contiguous()
        return r.double().cpu()

    def restart_if_full(self) -> None:
        """Keeps only the best Ritz vectors from both ends if the next block would not fit."""
        if self._ritz is None or self.m + self.next.shape[0] <= self.rows.shape[0]:
            return
        values, vectors, wanted = self._ritz
        spare = self.rows.shape[0] - self.next.shape[0] - len(wanted)
        chosen = _with_nearest(values, wanted, spare // 2)
        self.rows[: len(chosen)] = self.combine(vectors[:, chosen])
        self.projected.zero_()
        self.m = len(chosen)
        self.projected[: self.m, : self.m] = torch.diag(values[chosen])

    def combine(self, coefficients: Tensor) -> Tensor:
        """Unit vectors [k, n] from coefficients [m, k]."""
        vectors = coefficients.T.to(self.rows) @ self.rows[: coefficients.shape[0]]
        return vectors / vectors.norm(dim=1, keepdim=True)


def _ends(m: int, top: int, bottom: int) -> list[int]:
    """Indices of the largest `top` and smallest `bottom` of m ascending values, descending."""
    upper = list(range(m - 1, max(m - 1 - top, -1), -1))
    lower = [i for i in range(min(bottom, m)) if i not in upper]
    return upper + lower[::-1]


def _with_nearest(values: Tensor, wanted: list[int], count: int) -> list[int]:
    """The wanted indices and the `count` next most extreme ones, which speed up convergence."""
    outward = (values - values.median()).abs().argsort(descending=True).tolist()
    return sorted(wanted + [i for i in outward if i not in wanted][:count])
