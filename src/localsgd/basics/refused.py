"""Reasons why msgspec refuses a value or a file, in plain words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

WANTED = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping of names to values",
}
FOUND = {**WANTED, "float": "a number with decimals", "object": "a mapping", "null": "None"}
"""msgspec's names of types, in words: for what is wanted, and for what was given."""


def explained(error: Exception, of: Any = None) -> tuple[str, str]:
    """The place in the value, such as `local_steps[0]`, and the reason; no place for the whole.

    Args:
        error: of msgspec, or what it lets through.
        of: the type that the value was to have, whose names and values help; of a struct its own.
    """
    said, _, place = str(error).partition(" - at `$")
    place = place.rstrip("`").lstrip(".")
    fields = get_type_hints(of) if hasattr(of, "__struct_fields__") else {}
    if match := re.fullmatch(r"Object contains unknown field `(.+)`", said):
        near = difflib.get_close_matches(match[1], fields, n=1)
        return place, f"unknown name {match[1]!r}" + "".join(f"; nearest: {n}" for n in near)
    if match := re.fullmatch(r"Object missing required field `(.+)`", said):
        return place, f"it has no {match[1]}"
    if match := re.fullmatch(r"Invalid enum value (.+)", said):
        choices = ", ".join(_choices(fields.get(place, of)))
        return place, f"unknown value {match[1]}" + f"; there are {choices}" * bool(choices)
    return place, in_words(said)


def in_words(reason: str) -> str:
    """msgspec's reason to refuse a value, in plain words if it is known.

    >>> in_words("Expected `int | null`, got `str`"), in_words("Expected `int` >= 1")
    ('give a whole number, not text', 'give a whole number >= 1')
    """
    if reason == "Input data was truncated":
        return "it ends too early"
    if reason.startswith("JSON is malformed: "):
        return f"it is no JSON: {reason.removeprefix('JSON is malformed: ')}"
    if reason == "Number out of range":
        return "give a number that a float can hold"
    match = re.fullmatch(r"Expected `([^`]+)`( [<>].*)?(?:, got `([^`]+)`)?", reason)
    if match is None:
        return reason
    wanted = [WANTED.get(kind, "") for kind in match[1].split(" | ") if kind != "null"]
    if not all(wanted):
        return reason
    given = f", not {FOUND.get(match[3], match[3])}" if match[3] else ""
    return f"give {' or '.join(wanted)}{match[2] or ''}{given}"


def _choices(kind: Any) -> Iterable[str]:
    """The texts that a type allows, as `Literal["linear", "sqrt"] | None` does two."""
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    return [text for part in get_args(kind) for text in _choices(part)]
