"""PowerSGD: approximates matrices by products of two thin ones, whose means are sent.

For each tensor, seen as a matrix, with V_k = U_k + E_k and Q of the last sync:

    P <- orthogonal(mean_k V_k Q),   Q_k <- V_k^T P,   E_k <- V_k - P Q_k^T,   Q <- mean_k Q_k
    result: P Q^T

(Vogels, Karimireddy, Jaggi 2019, Algorithms 1 and 2, with warm start.) Tensors that would not get
smaller are sent uncompressed: vectors, and matrices with r (rows + columns) >= rows · columns. The
two means are plain means of small vectors, for any M.

Rows in half precision are processed, remembered and sent in float32: P is of the size of a squared
update, too small for float16, and rounding would make the basis no longer orthogonal.

Shapes: g groups · m members hosted here · M members · n scalars of a row · r rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from localsgd.basics.seeds import generator_for
from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.reduce.compressor import check_dtype, first_not_finite
from localsgd.reduce.exact import ExactMean
from localsgd.reduce.memory import check_saved, memory_at, reduced_wide, refusal
from localsgd.reduce.reducer import Reducer, Unsuitable
from localsgd.rows.layout import Layout, Slot
from localsgd.wire.collective import Collective, Pending


class Matrix(NamedTuple):
    """A tensor that is compressed: its position in a row, and its shape as a matrix."""

    name: str
    start: int
    rows: int
    columns: int

    def view(self, x: Tensor) -> Tensor:
        """This matrix `[..., rows, columns]` as a view of `x [..., n]`."""
        stop = self.start + self.rows * self.columns
        return x[..., self.start : stop].unflatten(-1, (self.rows, self.columns))


@dataclass(frozen=True)
class Plan:
    """The matrices to compress, and the parts `[start, stop)` of a row to send as they are."""

    matrices: tuple[Matrix, ...]
    plain: tuple[tuple[str, int, int], ...]

    @staticmethod
    def of(layout: Layout, rank: int) -> Plan:
        matrices: list[Matrix] = []
        plain: list[tuple[str, int, int]] = []
        for slot in layout.slots:
            rows, columns = _as_matrix(slot)
            if rank * (rows + columns) < rows * columns:
                matrices.append(Matrix(slot.name, slot.offset, rows, columns))
            elif slot.length:
                plain.append((slot.name, slot.offset, slot.offset + slot.length))
        if not matrices:
            raise Unsuitable(
                f"PowerSGD of rank {rank} makes no tensor of this model smaller; "
                f"{_largest_rank(layout)}"
            )
        return Plan(tuple(matrices), tuple(plain))


class PowerSgd(Reducer):
    """Reduces updates to the mean of their projections on a few directions, with error feedback.

    Args:
        layout: of the tensors in a row; if not given, `bound` sets it.
        rank: r.
        feedback: whether what a projection lost is added to the next update.
        mean: takes the two small means; `OrderedMean` gives the same bits for any number of
            processes.
        seed: of the first Q.

    State by member: `error [g, m, n]`; `q [g, m, sum of r · columns]`, equal in a group.
    """

    members_may_change = True

    def __init__(
        self,
        layout: Layout | None = None,
        rank: int = 2,
        *,
        feedback: bool = True,
        mean: Reducer | None = None,
        seed: int = 0,
    ) -> None:
        if rank < 1:
            raise UserError(f"rank {rank} sends nothing; give 1 or more")
        self.rank = rank
        self.feedback = feedback
        self._layout = layout
        self._made: Plan | None = None
        if layout is not None:
            check_dtype(layout.dtype)
            self._made = Plan.of(layout, rank)
        self._mean: Reducer = mean or ExactMean()
        self._seed = seed
        self._error: Tensor | None = None
        self._q: Tensor | None = None

    def __repr__(self) -> str:
        settings = f"feedback={self.feedback}, mean={self._mean!r}, seed={self._seed}"
        return f"PowerSgd(rank={self.rank}, {settings})"

    def reduce(
        self, update: Tensor, weights: Tensor | None, collective: Collective
    ) -> Pending[Tensor]:
        self._check_length(update)
        return reduced_wide(self._reduced, update, weights, collective)

    def _reduced(self, update: Tensor, collective: Collective) -> Pending[Tensor]:
        if self._error is not None:
            self._error = memory_at(self._error, update)
            update += self._error
        if self._q is None:
            self._q = self._drawn(update).expand(*update.shape[:2], -1)
        self._q = self._q.to(update.device)
        p = self._mean_products(update, collective)
        left = [_orthogonal(part) for part in self._split(p, of_rows=True)]  # [g, rows, r]
        own = self._projected(update, left)  # [g, m, columns, r]
        if self.feedback:
            self._error = self._lost(update, left, own)
        pending = self._mean.reduce(_flat(own), None, collective)

        def finish() -> Tensor:
            q = pending.wait()
            self._q = q.unsqueeze(1).expand(*update.shape[:2], -1)
            return self._result(p, left, q, update[:, 0])

        return Pending(finish)

    @property
    def _plan(self) -> Plan:
        if self._made is None:
            raise UserError(
                "PowerSGD needs the layout of the row; make it with a layout, or bind it to one"
            )
        return self._made

    def bound(self, layout: Layout) -> PowerSgd:
        """A new copy that knows `layout`, unless it was made with one."""
        chosen = self._layout or layout
        return PowerSgd(chosen, self.rank, feedback=self.feedback, mean=self._mean, seed=self._seed)

    def part(self, start: int, stop: int) -> PowerSgd:
        """A new copy for a whole row; raises for a part, which would cut matrices."""
        if self._layout is not None and (start, stop) == (0, self._layout.length):
            return self.bound(self._layout)
        raise UserError(
            "PowerSGD needs whole tensors and cannot be applied to fragments of a row; "
            "use one fragment, or another compressor"
        )

    def _check_length(self, update: Tensor) -> None:
        if self._layout is not None and update.shape[-1] != self._layout.length:
            raise UserError(
                f"the layout is of rows of {plural(self._layout.length, 'scalar')}, not of "
                f"{update.shape[-1]}"
            )

    def _mean_products(self, update: Tensor, collective: Collective) -> Tensor:
        """The mean of all V_k Q, followed by the mean of what is sent as it is: `[g, ...]`."""
        assert self._q is not None
        q = self._split(self._q, of_rows=False)
        products = [
            _products(matrix.view(update), right)
            for matrix, right in zip(self._plan.matrices, q, strict=True)
        ]
        plain = [update[..., start:stop] for _, start, stop in self._plan.plain]
        flat = torch.cat([_flat(products), *plain], -1)
        found = self._mean.reduce(flat, None, collective).wait()
        place = first_not_finite(found.sum(0))
        if place is not None:
            own = torch.isfinite(update).all(-1, keepdim=True).logical_not().to(torch.uint8)
            culprits = collective.gather(own).wait()[..., 0]
            raise refusal(self._name_at(place), culprits)
        return found

    def _projected(self, update: Tensor, left: list[Tensor]) -> list[Tensor]:
        """Every member's V_k^T P, `[g, m, columns, r]` for each matrix."""
        return [
            _products(matrix.view(update).transpose(-1, -2), basis.unsqueeze(1))
            for matrix, basis in zip(self._plan.matrices, left, strict=True)
        ]

    def _lost(self, update: Tensor, left: list[Tensor], own: list[Tensor]) -> Tensor:
        """The new memory: V_k - P Q_k^T of matrices, and 0 of the rest."""
        error = torch.zeros_like(update) if self._error is None else self._error
        for matrix, basis, right in zip(self._plan.matrices, left, own, strict=True):
            sent = _products(basis.unsqueeze(1), right.transpose(-1, -2))
            torch.sub(matrix.view(update), sent, out=matrix.view(error))
        return error

    def _result(self, p: Tensor, left: list[Tensor], q: Tensor, out: Tensor) -> Tensor:
        """Writes P Q^T, and the means of what was sent as it is, into `out [g, n]`."""
        out.zero_()
        right = self._split(q, of_rows=False)
        for matrix, basis, part in zip(self._plan.matrices, left, right, strict=True):
            product = _products(basis.unsqueeze(1), part.transpose(-1, -2).unsqueeze(1))
            matrix.view(out).copy_(product[:, 0])
        at = sum(matrix.rows for matrix in self._plan.matrices) * self.rank
        for _, start, stop in self._plan.plain:
            out[:, start:stop] = p[:, at : at + stop - start]
            at += stop - start
        return out

    def _split(self, flat: Tensor, *, of_rows: bool) -> list[Tensor]:
        """All P (or Q) `[g, rows, r]` at the beginning of a vector `[g, ...]`."""
        found, at = [], 0
        for matrix in self._plan.matrices:
            height = matrix.rows if of_rows else matrix.columns
            stop = at + height * self.rank
            found.append(flat[..., at:stop].unflatten(-1, (height, self.rank)))
            at = stop
        return found

    def _drawn(self, like: Tensor) -> Tensor:
        """A random Q for every matrix, `[1, ...]`."""
        draws = [
            torch.randn(
                matrix.columns * self.rank, generator=draw, dtype=torch.float64, device="cpu"
            )
            for index, matrix in enumerate(self._plan.matrices)
            for draw in [generator_for(self._seed, "power-sgd", index)]
        ]
        return torch.cat(draws).to(like).unsqueeze(0)

    def _name_at(self, place: int) -> str:
        """The name of the tensor at an index of the first vector that is averaged."""
        for matrix in self._plan.matrices:
            place -= matrix.rows * self.rank
            if place < 0:
                return matrix.name
        for name, start, stop in self._plan.plain:
            place -= stop - start
            if place < 0:
                return name
        raise AssertionError("the index is beyond the vector")

    def regroup(self, before: int, now: int) -> None:
        """e_k <- now / before · e_k; that of a new member is 0, and it takes over Q (`shared`)."""
        if self._error is not None:
            self._error *= now / before if before else 0

    def shared(self) -> list[Tensor]:
        if self._q is None:
            return []
        self._q = self._q.contiguous()
        return [self._q]

    def state(self) -> dict[str, Any]:
        kept = {"error": self._error, "q": self._q}
        return {
            "feedback": self.feedback,
            **{name: tensor for name, tensor in kept.items() if tensor is not None},
        }

    def load(self, state: dict[str, Any]) -> None:
        check_saved(state, self.feedback, complete="error" in state or "q" not in state)
        kept = {name: value.clone() for name, value in state.items() if isinstance(value, Tensor)}
        self._error, self._q = kept.get("error"), kept.get("q")


def _as_matrix(slot: Slot) -> tuple[int, int]:
    """Rows and columns of a tensor's memory; the outermost axis gives the rows."""
    if len(slot.shape) < 2 or not slot.length:
        return 1, slot.length
    rows = slot.shape[max(range(len(slot.shape)), key=lambda axis: slot.stride[axis])]
    return rows, slot.length // rows


def _largest_rank(layout: Layout) -> str:
    ranks = [
        (rows * columns - 1) // (rows + columns)
        for rows, columns in map(_as_matrix, layout.slots)
        if columns
    ]
    most = max(ranks, default=0)
    return f"give at most {most}" if most else "it has no matrix that is large enough"


def _flat(parts: list[Tensor]) -> Tensor:
    """Matrices `[g, m, a, b]` as one vector `[g, m, ...]`."""
    return torch.cat([part.flatten(2) for part in parts], -1)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """The products of `a [g, m or 1, i, j]` and `b [g, m or 1, j, k]`.

    They are computed member by member, so that the bits do not depend on how many are hosted.
    """
    groups, members = a.shape[0], max(a.shape[1], b.shape[1])
    a, b = (x.expand(groups, members, -1, -1) for x in (a, b))
    out = a.new_empty((groups, members, a.shape[2], b.shape[3]))
    for group in range(groups):
        for member in range(members):
            torch.mm(a[group, member], b[group, member], out=out[group, member])
    return out


def _orthogonal(p: Tensor) -> Tensor:
    """An orthonormal basis `[g, rows, r]` of the columns of `p`, group by group.

    Householder's method completes the basis if columns are 0, so a tensor that has not moved can
    move later.
    """
    return torch.stack([torch.linalg.qr(matrix).Q for matrix in p])
