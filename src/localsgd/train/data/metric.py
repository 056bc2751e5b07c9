"""Metrics: the number by which a model is judged, its direction, and its format.

A record names its metric: an evaluation has `test_accuracy` or `test_perplexity`, a summary the
same and `best_` and `local_` beside it.

Examples:
    >>> ACCURACY.words(0.98333, 1), PERPLEXITY.words(86.5, 2)
    ('98.3 %', '86.50')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A metric of a model.

    Args:
        name: one word, in records and for people.
        short: for the head of a column.
        title: of many, for people.
        of: from the mean loss and the accuracy, a share of 1.
        error: of a value, the smaller the better, above 0.
        at: the value of an error.
        scale: what a value is multiplied by for people.
        unit: that follows then.
        lower_is_better: which way is better.
    """

    name: str
    short: str
    title: str
    of: Callable[[float, float], float]
    error: Callable[[float], float]
    at: Callable[[float], float]
    scale: float
    unit: str
    lower_is_better: bool

    @property
    def key(self) -> str:
        """The key in evaluations: the averaged model's value on test data."""
        return f"test_{self.name}"

    @property
    def local(self) -> str:
        """The key of the mean over the workers' own models."""
        return f"local_{self.name}"

    @property
    def best(self) -> str:
        """The key in summaries: the value of the best evaluation."""
        return f"best_{self.name}"

    @property
    def axis(self) -> str:
        """The label of a picture's axis."""
        unit = f" ({self.unit.strip()})" if self.unit else ""
        return f"test {self.name}{unit}"

    def best_of(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """The best evaluation, the first of equal ones; None of none that is a number."""
        choose = min if self.lower_is_better else max
        numbers = [row for row in rows if not math.isnan(row[self.key])]
        return choose(numbers, key=lambda row: row[self.key], default=None)

    def words(self, value: float | None, digits: int = 2) -> str:
        """A value with its unit; a dash for None."""
        return "–" if value is None else self.figure(value, digits) + self.unit

    def figure(self, value: float, digits: int = 2) -> str:
        """A value, or a deviation, without its unit."""
        return f"{self.scale * value:.{digits}f}"


def _perplexity(loss: float, accuracy: float) -> float:
    """exp(mean loss over all tokens); infinite if that is beyond a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


ACCURACY = Metric(
    name="accuracy",
    short="acc.",
    title="Accuracies in %,",
    of=lambda loss, accuracy: accuracy,
    error=lambda accuracy: 1 - accuracy,
    at=lambda error: 1 - error,
    scale=100.0,
    unit=" %",
    lower_is_better=False,
)
PERPLEXITY = Metric(
    name="perplexity",
    short="ppl.",
    title="Perplexities (lower is better)",
    of=_perplexity,
    error=lambda perplexity: perplexity,
    at=lambda error: error,
    scale=1.0,
    unit="",
    lower_is_better=True,
)
METRICS = (ACCURACY, PERPLEXITY)


def metric_of(row: Mapping[str, Any]) -> Metric:
    """The metric of an evaluation or a summary."""
    return next((metric for metric in METRICS if metric.key in row), ACCURACY)
