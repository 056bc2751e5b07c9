"""The runs behind the numbers: each configuration with its settings, seeds, results and curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from experiments.report.content import PENDING, Configuration
from experiments.report.markup import Html, element
from experiments.report.pieces import grid
from experiments.report.sparkline import sparkline
from localsgd.basics.units import plural

HIDDEN = frozenset({"weights"})
"""Scalars of a record that are not shown."""


def listed(configurations: Sequence[Configuration]) -> Html:
    """All runs, in a collapsed section."""
    return element("div", *map(_one, configurations), class_="runs")


def _one(shown: Configuration) -> Html:
    done, all_ = len(shown.done), len(shown.runs)
    words = plural(all_, "run") if done == all_ else f"{done} of {all_} runs"
    return element(
        "details",
        element(
            "summary",
            element("span", shown.title, class_="what"),
            element("span", words, class_="small"),
            sparkline(shown.done),
        ),
        # The place of links: a browser unfolds what it lies in.
        element("div", _settings(shown.settings), _results(shown), id=shown.anchor),
    )


def _settings(settings: Any) -> Html:
    pairs = (
        element("div", element("dt", name.replace("_", " ")), element("dd", _told(value)))
        for name, value in settings.items()
    )
    return element("dl", *pairs)


def _results(shown: Configuration) -> Html:
    names = list(dict.fromkeys(name for record in shown.done for name in _scalars(record)))
    rows = []
    for seed, record in sorted(shown.runs.items()):
        if record is None:
            todo = element("span", PENDING, class_="todo")
            rows.append(element("tr", element("td", seed), element("td", todo)))
            continue
        cells = (element("td", _told(record.get(name, "")), class_="number") for name in names)
        rows.append(element("tr", element("td", seed), *cells))
    return grid("By seed", ["seed", *(name.replace("_", " ") for name in names)], rows)


def _scalars(record: Any) -> list[str]:
    return [
        name
        for name, value in record.items()
        if name not in HIDDEN and (isinstance(value, int | float | str) or _short(value))
    ]


def _short(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= 4
        and all(isinstance(one, int | float) for one in value)
    )


def _told(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(", ", ": "))
