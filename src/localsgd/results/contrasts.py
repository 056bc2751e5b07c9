"""Configurations over seeds: mean, deviation, and the paired difference to a baseline.

A difference is of two runs with the same seed. `basics/paired.py` has its interval and the rule
that decides; all comparisons of a table are corrected together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from localsgd.basics.paired import Interval, Test, decided, holm
from localsgd.errors import UserError
from localsgd.results.grouping import Group, Record, Spread, is_diverged, metric
from localsgd.results.labels import plain
from localsgd.train.config.vary import Point
from localsgd.train.data.metric import Metric


@dataclass(frozen=True)
class Line:
    """One configuration.

    Args:
        values: of the settings in which configurations differ, in words.
        runs: as many as there are.
        n: those that have ended.
        diverged: those of them that have diverged; then there is no mean.
        spread: of the metric at the end, over the runs that have ended.
        baseline: the baseline's values in words; `None` for a baseline.
        difference: to the baseline, over the seeds that both have; `None` where there is none.
        p: of the difference, corrected.
        decided: whether the difference is not 0 by the rule of `basics/paired.py`.
    """

    values: Mapping[str, str]
    runs: int
    n: int
    diverged: int
    spread: Spread | None
    baseline: str | None = None
    difference: Interval | None = None
    p: float = 1.0
    decided: bool = False


@dataclass(frozen=True)
class Contrasts:
    """A table of configurations.

    Args:
        names: the settings in which they differ.
        metric: by which they are judged; means and differences are times its scale.
        lines: one for each.
    """

    names: Sequence[str]
    metric: Metric
    lines: Sequence[Line]

    @property
    def comparisons(self) -> int:
        return sum(line.baseline is not None for line in self.lines)


def contrasts(groups: Sequence[Group], names: Sequence[str], baseline: Point | None) -> Contrasts:
    """The table of `groups`, which differ in the settings `names`.

    A group is compared with the one that has the baseline's values, and its own values of all other
    settings.

    Args:
        groups: of runs that differ in their seeds alone.
        names: of the settings that tell them apart.
        baseline: some of these settings; nothing is compared if not given.

    Raises:
        UserError: a group has no baseline.
    """
    judged = metric(groups)
    lines: list[Line] = []
    tests: dict[int, Test] = {}
    for index, group in enumerate(groups):
        line = _line(group, names, judged)
        if baseline is not None and not _matches(group, baseline):
            other = _baseline_of(group, groups, names, baseline)
            line = replace(line, baseline=_words(other, names))
            found = _differences(group, other, judged)
            if found and not line.diverged:
                tests[index] = Test(tuple(found), -math.inf, 0.0)  # bounded by 0 on either side
                line = replace(line, difference=tests[index].interval)
        lines.append(line)
    compared = [index for index, line in enumerate(lines) if line.baseline is not None]
    values = holm([tests[index].p if index in tests else 1.0 for index in compared])
    for index, p in zip(compared, values, strict=True):
        if index in tests:
            whole = _complete(groups[index]) and lines[index].n == tests[index].n
            is_decided = whole and decided(tests[index], p)
            lines[index] = replace(lines[index], p=p, decided=is_decided)
    return Contrasts(names, judged, lines)


def _complete(group: Group) -> bool:
    return all(record.summary is not None for record in group.records)


def _line(group: Group, names: Sequence[str], judged: Metric) -> Line:
    seeds = [record.run.seed for record in group.records]
    for record in group.records:
        if seeds.count(record.run.seed) > 1:
            raise UserError(
                f"{record.folder.path} is not the only run with its settings and seed "
                f"{record.run.seed}, so differences can't be paired; leave one of them out"
            )
    ended = [record for record in group.records if record.summary is not None]
    lost = sum(is_diverged(record.last) for record in ended)
    spread = None if lost else Spread.of([_figure(record, judged) for record in ended])
    return Line(_values(group, names), len(group.records), len(ended), lost, spread)


def _figure(record: Record, judged: Metric) -> float:
    return judged.scale * record.last[judged.key]


def _differences(group: Group, other: Group, judged: Metric) -> list[float]:
    """By seed, of the seeds that have ended in both, if none has diverged."""
    mine, theirs = (
        {record.run.seed: record for record in each.records if record.summary is not None}
        for each in (group, other)
    )
    if any(is_diverged(record.last) for record in theirs.values()):
        return []
    return [
        _figure(mine[seed], judged) - _figure(theirs[seed], judged)
        for seed in mine
        if seed in theirs
    ]


def _values(group: Group, names: Sequence[str]) -> dict[str, str]:
    return {name: plain(getattr(group.run, name)) for name in names}


def _words(group: Group, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {word}" for name, word in _values(group, names).items())


def _matches(group: Group, baseline: Point) -> bool:
    return all(getattr(group.run, name) == value for name, value in baseline.values.items())


def _baseline_of(
    group: Group, groups: Sequence[Group], names: Sequence[str], baseline: Point
) -> Group:
    """Of the groups with the baseline's values, the one most like `group` in the others."""
    candidates = [each for each in groups if _matches(each, baseline)]
    if not candidates:
        there = {name: _words_of(groups, name) for name in baseline.values}
        has = "; ".join(f"{name}: {words}" for name, words in there.items())
        raise UserError(f"--baseline {baseline.name} is not among the runs, which have {has}")

    def alike(each: Group) -> int:
        others = (name for name in names if name not in baseline.values)
        return sum(getattr(each.run, name) == getattr(group.run, name) for name in others)

    most = max(map(alike, candidates))
    best = [each for each in candidates if alike(each) == most]
    if len(best) > 1:
        raise UserError(
            f"--baseline {baseline.name} leaves open which of {len(best)} configurations "
            f"{_words(group, names)} is compared with; name more settings"
        )
    return best[0]


def _words_of(groups: Sequence[Group], name: str) -> str:
    return ", ".join(dict.fromkeys(plain(getattr(group.run, name)) for group in groups))
