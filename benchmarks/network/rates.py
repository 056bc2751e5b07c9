"""Rates of links: bits a second, read and written as people do."""

from __future__ import annotations

import re

from benchmarks.network.refusal import Refused

LEAST, MOST = 10_000_000, 10_000_000_000
"""Bits a second that a link can be shaped to: below, gloo's own traffic shows; above, the machine
is the limit."""

_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


def bits_per_second(text: str) -> int:
    """`10mbit`, `2.5gbit` or `100000000` as a number.

    >>> bits_per_second("100mbit")
    100000000
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:bit(?:/s)?)?", text.strip().lower())
    if match is None:
        raise Refused(f"rate {text!r} is not understood; write 10mbit, 100mbit or 2.5gbit")
    return checked(round(float(match[1]) * _UNITS[match[2]]))


def checked(rate: int) -> int:
    """`rate`, if a link can have it."""
    if not LEAST <= rate <= MOST:
        raise Refused(
            f"a link of {named(rate)} can't be made here; choose {named(LEAST)} to {named(MOST)}"
        )
    return rate


def named(rate: int | None) -> str:
    """`100 Mbit/s`; `unshaped` for `None`."""
    if rate is None:
        return "unshaped"
    unit, size = ("Gbit/s", 1e9) if rate >= 1e9 else ("Mbit/s", 1e6)
    return f"{rate / size:g} {unit}"
