"""Learning curves of made-up records: the mean over seeds, and differences paired by seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from experiments.pictures import learning_curves
from experiments.scales import SCALES
from experiments.studies.headline import M1, untuned
from experiments.study import Record, Scale
from localsgd.basics.paired import paired

EPOCHS = (5.0, 40.0, 45.0, 80.0)


@dataclass
class Made:
    """Records of some seeds by the H of the arm: test accuracies at each of `EPOCHS`."""

    known: Mapping[int, Mapping[int, tuple[float, ...]]]
    scale: Scale = SCALES["medium"]

    def of(self, job: Any) -> Record | None:
        found = self.known[(job.run.local_steps or (1,))[0]].get(job.run.seed)
        if found is None:
            return None
        curve = [[epoch, value, 1.0] for epoch, value in zip(EPOCHS, found, strict=True)]
        return {"curve": curve, "test_accuracy": 100 * found[-1]}


def test_the_third_panel_has_paired_differences_and_their_intervals() -> None:
    large = {0: (0.3, 0.6, 0.78, 0.80), 1: (0.2, 0.5, 0.70, 0.75), 2: (0.4, 0.5, 0.7, 0.71)}
    local = {0: (0.3, 0.6, 0.79, 0.82), 1: (0.2, 0.5, 0.73, 0.76)}
    by = untuned(SCALES["medium"], M1)
    arms = [by["A2"], by["A5, H = 16"]]
    records = Made({1: large, 16: local})
    picture = learning_curves("name", "title", records, arms, minus=(arms[0], 45.0))
    _, tests, differences = picture.draw().axes
    means = [line.get_ydata() for line in tests.get_lines()]
    assert means[0] == pytest.approx(100 * np.mean(list(large.values()), axis=0))
    line, zero = differences.get_lines()
    assert list(line.get_xdata()) == [45.0, 80.0]
    pairs = [[1.0, 3.0], [2.0, 1.0]]
    assert line.get_ydata() == pytest.approx([np.mean(pair) for pair in pairs])
    assert set(zero.get_ydata()) == {0.0}
    (band,) = differences.collections
    corners = band.get_paths()[0].vertices
    for epoch, pair in zip((45.0, 80.0), pairs, strict=True):
        ends = {round(float(y), 6) for x, y in corners if x == epoch}
        expected = paired(pair)
        assert ends == {round(expected.low, 6), round(expected.high, 6)}
    assert "minus" in differences.get_ylabel()
