"""Simulates how often the rule of verdicts errs, and how often it finds a real difference.

    python -m experiments.power > tables.md

Differences of n seeds are drawn with deviation 1 around a mean of so many deviations. *Alone* is a
claim in a family of its own; *of 8* is one beside seven others without an effect, so that Holm's
correction asks most of it. Skewed differences are exponential or log-normal, shifted and scaled.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from experiments.markdown import table
from localsgd.basics.paired import ALPHA, LEAST_SEEDS, holm

SEED = 0
DRAWS = 20_000
SEEDS = (3, 5, 10)
EFFECTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Means of simulated differences, in units of their deviation."""
FAMILY = 8
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
LOG_NORMAL = 0.5
"""Deviation of the logarithm of a log-normal distribution."""


def _log_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    square = LOG_NORMAL**2
    deviation = np.sqrt((np.exp(square) - 1) * np.exp(square))
    return (rng.lognormal(0, LOG_NORMAL, shape) - np.exp(square / 2)) / deviation


SHAPES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "log-normal": _log_normal,
    "exponential": lambda rng, shape: rng.exponential(1, shape) - 1,
}


def p_of_t(drawn: np.ndarray) -> np.ndarray:
    """The p of Student's t for all draws at once: `[draws, n]` to `[draws]`."""
    from scipy.stats import ttest_1samp

    return ttest_1samp(drawn, 0.0, axis=1).pvalue


def p_of_signs(drawn: np.ndarray) -> np.ndarray:
    """The exact p of the sign-flip test for all draws at once: `[draws, n]` to `[draws]`."""
    n = drawn.shape[1]
    bits = np.arange(2**n)[:, None] >> np.arange(n) & 1
    sums = np.abs(drawn @ (2.0 * bits.T - 1))
    return (sums >= sums[:, -1:] * (1 - 1e-12)).mean(axis=1)


def decided(drawn: np.ndarray, of: int = 1) -> tuple[float, float]:
    """Shares of draws with a verdict: above 0, and below 0; p has to be `of` times as small."""
    n = drawn.shape[1]
    sure = (p_of_t(drawn) * of <= ALPHA) & (p_of_signs(drawn) <= max(ALPHA, 2.0 ** (1 - n)))
    sure &= n >= LEAST_SEEDS
    mean = drawn.mean(axis=1)
    return float((sure & (mean > 0)).mean()), float((sure & (mean < 0)).mean())


def of_t_alone(drawn: np.ndarray) -> float:
    """The share of draws that Student's t by itself would decide, on either side."""
    return float((p_of_t(drawn) <= ALPHA).mean())


def false_positives() -> list[list[str]]:
    """Verdicts where there is no difference, in per cent."""
    rows = []
    for name, draw in SHAPES.items():
        for n in SEEDS:
            drawn = draw(np.random.default_rng([SEED, n]), (DRAWS, n))
            above, below = decided(drawn)
            numbers = (of_t_alone(drawn), above + below, above, below, _any_of(draw, n))
            rows.append([name, str(n), *map(_percent, numbers)])
    return rows


def _any_of(draw: Draw, n: int) -> float:
    """The share of families of `FAMILY` claims without an effect that give a verdict or more."""
    drawn = draw(np.random.default_rng([SEED, n, 1]), (DRAWS, n))
    p = p_of_t(drawn).reshape(-1, FAMILY)
    flips = (p_of_signs(drawn) <= max(ALPHA, 2.0 ** (1 - n))).reshape(-1, FAMILY)
    corrected = np.array([holm(row.tolist()) for row in p])
    return float(((corrected <= ALPHA) & flips & (n >= LEAST_SEEDS)).any(axis=1).mean())


def power() -> list[list[str]]:
    """Verdicts where there is a difference, normal, in per cent: alone, and one of `FAMILY`."""
    rows = []
    for effect in EFFECTS[1:]:
        row = [f"{effect:g}", f"{0.3 * effect:.2g}"]
        for n in SEEDS:
            drawn = effect + SHAPES["normal"](np.random.default_rng([SEED, n]), (DRAWS, n))
            row += [_percent(decided(drawn)[0]), _percent(decided(drawn, FAMILY)[0])]
        rows.append(row)
    return rows


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def tables() -> str:
    """Both, in Markdown."""
    first = ["differences", "n", "t alone", "the rule", "above", "below", f"any of {FAMILY}"]
    second = ["effect / deviation", "points, where it is 0.3"]
    second += [f"n = {n}, {words}" for n in SEEDS for words in ("alone", f"of {FAMILY}")]
    return "\n\n".join((_table(first, false_positives()), _table(second, power())))


def _table(headings: list[str], rows: list[list[str]]) -> str:
    return table(headings, rows, numbers=range(1, len(headings)))


if __name__ == "__main__":
    print(tables())
