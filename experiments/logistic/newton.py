"""The minimum f* by damped Newton, to machine precision."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from experiments.logistic.problem import Logistic
from experiments.logistic.rows import Floats
from localsgd.basics.files import read_text
from localsgd.errors import UserError

_DECREMENT = 1e-12
_ARMIJO = 1e-4


class NoMinimum(ArithmeticError):
    """Newton's method came to no end: unbounded below, or too badly conditioned."""


@dataclass(frozen=True)
class Minimum:
    """The result of Newton's method.

    Args:
        value: f*.
        gradient_norm: |gradient| there.
        steps: Newton steps taken.
    """

    value: float
    gradient_norm: float
    steps: int


def minimise(problem: Logistic, most_steps: int = 100) -> Minimum:
    """f* of `problem`.

    A step s = -H^-1 g is halved until f falls by 1e-4 of what its slope promises (Armijo). The
    method stops once the Newton decrement sqrt(g.H^-1 g) is below 1e-12: f - f* is then about half
    its square, far below rounding.

    Raises:
        NoMinimum: not there after `most_steps`, as on separable data with lambda = 0.
    """
    w = np.zeros(problem.features)
    for steps in range(1, most_steps + 1):
        gradient = problem.gradient(w)
        direction = np.asarray(-np.linalg.solve(problem.hessian(w), gradient), np.float64)
        slope = float(gradient @ direction)
        if -slope <= _DECREMENT**2:
            w = w + direction
            return Minimum(problem.value(w), float(np.linalg.norm(problem.gradient(w))), steps)
        w = w + _damping(problem, w, direction, slope) * direction
    raise NoMinimum(f"no minimum after {most_steps} Newton steps; is lambda > 0?")


def _damping(problem: Logistic, w: Floats, direction: Floats, slope: float) -> float:
    value = problem.value(w)
    size = 1.0
    # Near the minimum the promised fall is below the rounding of f: allow for that.
    while problem.value(w + size * direction) > value + _ARMIJO * size * slope + 1e-15:
        size /= 2
        if size < 1e-10:
            raise NoMinimum("no step along Newton's direction lowers f")
    return size


def known_minimum(problem: Logistic, cache: Path) -> Minimum:
    """`minimise(problem)`, computed once and kept as a small file in folder `cache`.

    A damaged file is replaced.
    """
    path = cache / f"minimum-{_digest(problem)}.json"
    if path.is_file():
        with suppress(msgspec.DecodeError, RecursionError, UserError):
            return msgspec.json.decode(read_text(path), type=Minimum)
    minimum = minimise(problem)
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(msgspec.json.encode(minimum))
    unfinished.replace(path)
    return minimum


def _digest(problem: Logistic) -> str:
    rows = problem.signed
    digest = hashlib.sha256(repr((problem.features, problem.regularisation)).encode())
    for part in (rows.indptr.astype(np.int64), rows.indices.astype(np.int64), rows.data):
        digest.update(part.tobytes())
    return digest.hexdigest()[:16]
