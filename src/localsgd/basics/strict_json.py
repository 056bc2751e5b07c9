"""Strict JSON, which has no NaN and no infinity: they become null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(value: Any, **options: Any) -> str:
    """`value` as JSON; numbers that are not finite are null.

    Examples:
        >>> dumps({"loss": float("nan"), "steps": (1, 2)})
        '{"loss": null, "steps": [1, 2]}'
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **options)


def number(value: float | None) -> float:
    """A number read from strict JSON; NaN for null.

    Examples:
        >>> number(None)
        nan
    """
    return math.nan if value is None else value


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
