"""A reducer for each row of a model: rows differ by dtype and device."""

from __future__ import annotations

from collections.abc import Sequence

from localsgd.reduce.exact import ExactMean
from localsgd.reduce.reducer import Reducer, Unsuitable
from localsgd.rows.layout import Layout


def bound_to_all(reducer: Reducer, layouts: Sequence[Layout]) -> list[Reducer]:
    """One for each row of a model; the exact mean where it has nothing to do in a row, but has in
    another, as rows differ by dtype.
    """
    found: list[Reducer] = []
    reasons: list[Unsuitable] = []
    for layout in layouts:
        try:
            found.append(reducer.bound(layout))
        except Unsuitable as reason:
            found.append(ExactMean())
            reasons.append(reason)
    if len(reasons) == len(layouts):
        raise reasons[0]
    return found
