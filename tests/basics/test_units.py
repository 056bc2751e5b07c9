"""Numbers for people, at the edges where a unit or a digit changes."""

from __future__ import annotations

import math

import pytest

from localsgd.basics.units import count, duration, percent, plural, size


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_940, "99.9 kB"),
        (99_960, "100 kB"),
        (999_499, "999 kB"),
        (999_501, "1.0 MB"),
        (1_234_567, "1.2 MB"),
        (34_000_000_000, "34.0 GB"),
        (5e18, "5,000 PB"),
    ],
)
def test_size(number: float, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.012, "12 ms"),
        (0.9996, "1.0 s"),
        (3.44, "3.4 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3599.6, "1 h"),
        (7500, "2 h 5 min"),
        (86_390, "1 d"),
        (100_000, "1 d 4 h"),
        (None, "?"),
        (math.inf, "?"),
        (math.nan, "?"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_counts_shares_and_nouns() -> None:
    assert count(24_066) == "24,066"
    assert percent(0.98333) == "98.3 %"
    assert percent(0.98333, 2) == "98.33 %"
    assert percent(None) == "–"
    assert plural(1, "round") == "1 round"
    assert plural(1234, "process", "processes") == "1,234 processes"
    assert plural(0.5, "epoch") == "0.5 epochs"
    assert plural(1.0, "epoch") == "1 epoch"
