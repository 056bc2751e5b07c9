"""By which number a model is judged, which way is better, and how it is written.

A record names its metric: an evaluation has `test_accuracy` or `test_perplexity`, a summary the
same and `best_` and `local_` beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localsgd.units import percent


@dataclass(frozen=True)
class Metric:
    """A number for a model.

    Args:
        name: one word, in records and in words.
        short: for the head of a column.
        unit: how figures and axes name it.
        lower_is_better: which way is better.
        of: from mean loss and accuracy, a share of 1.
        words: with its unit, to so many digits after the point.
    """

    name: str
    short: str
    unit: str
    lower_is_better: bool
    of: Callable[[float, float], float]
    words: Callable[[float, int], str]

    @property
    def key(self) -> str:
        """In the rows of evaluations: of the agreed model, on test data."""
        return f"test_{self.name}"

    @property
    def local(self) -> str:
        """The mean of the workers' own models."""
        return f"local_{self.name}"

    @property
    def best(self) -> str:
        """In summaries: of the best evaluation."""
        return f"best_{self.name}"

    def best_of(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """The best evaluation, the first of equal ones; None of none."""
        choose = min if self.lower_is_better else max
        return choose(rows, key=lambda row: row[self.key], default=None)


def _perplexity(loss: float, accuracy: float) -> float:
    """exp(mean loss over all tokens); infinite where that is beyond a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


ACCURACY = Metric(
    name="accuracy",
    short="acc.",
    unit="%",
    lower_is_better=False,
    of=lambda loss, accuracy: accuracy,
    words=percent,
)
PERPLEXITY = Metric(
    name="perplexity",
    short="ppl.",
    unit="",
    lower_is_better=True,
    of=_perplexity,
    words=lambda value, digits=1: f"{value:.{digits}f}",
)
METRICS = (ACCURACY, PERPLEXITY)


def metric_of(row: Mapping[str, Any]) -> Metric:
    """The metric of an evaluation or a summary."""
    return next((metric for metric in METRICS if metric.key in row), ACCURACY)
