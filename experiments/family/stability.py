"""Why a global momentum of 0.7 beside a local one of 0.9 breaks down at H = 1.

On a quadratic of curvature a the three vectors (model, local velocity, global velocity) follow a
linear map in h = γ a, and a step size is stable while that map's spectral radius is at most 1:

    v <- m v + h w,   d <- h w + m v  (Nesterov)  or  v,   u <- m_g u + d,   w <- w - u

    python -m experiments.family.stability
"""

from __future__ import annotations

import numpy as np

from experiments.markdown import table

GLOBAL = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def step(h: float, local: float, outer: float, nesterov: bool = True) -> np.ndarray:
    """The map `[3, 3]` of one step, in units of γ times a gradient."""
    v = np.array([h, local, 0.0])
    d = np.array([h, 0.0, 0.0]) + local * v if nesterov else v
    u = np.array([0.0, 0.0, outer]) + d
    return np.stack([np.array([1.0, 0.0, 0.0]) - u, v, u])


def stable(h: float, local: float, outer: float, nesterov: bool = True) -> bool:
    """Whether h = γ a neither grows nor oscillates without end."""
    return bool(np.abs(np.linalg.eigvals(step(h, local, outer, nesterov))).max() <= 1 + 1e-12)


def largest_stable(local: float, outer: float, nesterov: bool = True) -> float:
    """The h up to which all smaller ones are stable too, to three digits."""
    last = 0.0
    for h in np.geomspace(1e-5, 5, 6_000):
        if not stable(float(h), local, outer, nesterov):
            return last
        last = float(h)
    return last


def thresholds() -> str:
    headings = [
        "global momentum", "largest stable γ a, Nesterov 0.9 inside", "heavy ball 0.9 inside"
    ]  # fmt: skip
    rows = []
    for outer in GLOBAL:
        own = [largest_stable(0.9, outer, nesterov) for nesterov in (True, False)]
        rows.append([f"{outer:g}", *(f"{one:.3g}" for one in own)])
    return table(headings, rows, numbers=range(3))


if __name__ == "__main__":
    print(thresholds())
