"""Formats numbers with their units: bytes, seconds, counts and fractions.

Examples:
    >>> size(1_234_567), duration(200), count(24_066), percent(0.98333)
    ('1.2 MB', '3 min 20 s', '24,066', '98.3 %')
"""

from __future__ import annotations

import math

_SIZES = ("kB", "MB", "GB", "TB", "PB")


WHOLE = 1 << 63
"""The smallest whole number that is too large for a tensor."""


def whole_number(text: str) -> int:
    """A whole number in plain digits, with a sign or without; not `1_000`, as Python would allow.

    Raises:
        ValueError: it is none, or beyond 64 bits.

    Examples:
        >>> whole_number("-12")
        -12
    """
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"{text[:40]!r} is no whole number")
    if len(digits) > 4000 or abs(int(text)) >= WHOLE:
        raise ValueError(f"{text[:40]!r} is beyond 64 bits")
    return int(text)


def whole_within(text: str, least: int, most: int) -> int | None:
    """A whole number in plain digits from `least` to `most`; `None` if a text is none.

    Examples:
        >>> whole_within("12", 0, 99), whole_within("100", 0, 99), whole_within("1e1", 0, 99)
        (12, None, None)
    """
    try:
        found = whole_number(text)
    except ValueError:
        return None
    return found if least <= found <= most else None


def decimal_number(text: str) -> float:
    """A finite number in plain digits; not `1_000`, `nan` or `inf`, as Python would allow.

    Raises:
        ValueError: it is none.

    Examples:
        >>> decimal_number("-1.5e3")
        -1500.0
    """
    value = float(text) if text.isascii() and "_" not in text else math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]!r} is no finite number")
    return value


def size(number: float) -> str:
    """A number of bytes, in powers of 1000: `96 B`, `1.2 MB`, `34 GB`."""
    if number < 1000:
        return f"{number:.0f} B"
    for unit in _SIZES:
        number /= 1000
        if number < 999.5 or unit == _SIZES[-1]:
            break
    return f"{number:.1f} {unit}" if number < 99.95 else f"{number:,.0f} {unit}"


def duration(seconds: float | None) -> str:
    """Seconds in two units at most: `12 ms`, `3.4 s`, `3 min 20 s`, `2 h 5 min`; `?` for `None`."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds > 0 else "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole, 60, "min", "s")
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return _two(minutes, 60, "h", "min")
    return _two(round(seconds / 3600), 24, "d", "h")


def _two(number: int, per: int, large: str, small: str) -> str:
    whole, rest = divmod(number, per)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"


def count(number: float) -> str:
    """A whole number with separators: `24,066`."""
    return f"{number:,.0f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A fraction as `98.3 %`; a dash for `None`."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def plural(number: float, one: str, several: str | None = None) -> str:
    """A number with its noun: `1 round`, `1,234 rounds`, `0.5 epochs`."""
    shown = f"{number:g}" if isinstance(number, float) else count(number)
    return f"{shown} {one if number == 1 else several or one + 's'}"
