from __future__ import annotations

import math
from dataclasses import replace

import pytest

from localsgd.errors import UserError
from localsgd.train.data.metric import ACCURACY, METRICS, PERPLEXITY, metric_of
from tests.train.data.cards import card_of_images


def test_values_follow_from_loss_and_accuracy() -> None:
    assert ACCURACY.of(2.0, 0.75) == 0.75
    assert PERPLEXITY.of(math.log(86.5), 0.3) == pytest.approx(86.5, rel=1e-14)
    assert PERPLEXITY.of(1e4, 0.0) == math.inf


def test_the_best_is_the_first_of_the_best() -> None:
    rows = [
        {"step": step, "test_accuracy": value, "test_perplexity": value}
        for step, value in enumerate((2.0, 1.0, 3.0, 1.0, 3.0))
    ]
    best = [metric.best_of(rows) for metric in METRICS]
    assert best == [rows[2], rows[1]]
    assert ACCURACY.best_of([]) is None


def test_records_name_their_metric() -> None:
    for metric in METRICS:
        assert metric_of({"step": 1, metric.key: 0.5}) is metric
    assert metric_of({}) is ACCURACY


def test_a_task_is_judged_by_a_metric_that_records_know() -> None:
    for metric in METRICS:
        assert card_of_images(2, (1, 4, 4), metric=metric).metric is metric
    other = replace(ACCURACY, name="recall")
    with pytest.raises(UserError, match="judged by 'recall', which records don't know; give ACC"):
        card_of_images(2, (1, 4, 4), metric=other)


def test_better_is_a_smaller_error_and_errors_can_be_undone() -> None:
    assert ACCURACY.error(0.9) < ACCURACY.error(0.8)
    assert PERPLEXITY.error(80.0) < PERPLEXITY.error(90.0)
    for metric in METRICS:
        assert metric.at(metric.error(0.75)) == 0.75


def test_words() -> None:
    assert [ACCURACY.words(0.98333, 1), PERPLEXITY.words(86.504)] == ["98.3 %", "86.50"]
    assert [ACCURACY.figure(0.0035), ACCURACY.words(None)] == ["0.35", "–"]
    assert [ACCURACY.axis, PERPLEXITY.axis] == ["test accuracy (%)", "test perplexity"]
