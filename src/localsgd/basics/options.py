"""Options of parts from outside, given as text: `two-bit.fraction=0.05`.

The options of a part are the parameters, with a usual value that is a number, a text or a truth
value, of whatever makes it: a dataclass, another class or a function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from localsgd.errors import UserError, unknown_name

Value: TypeAlias = bool | int | float | str
_WORDS = {"true": True, "yes": True, "false": False, "no": False}


def options_of(make: Callable[..., Any]) -> dict[str, Value]:
    """The options of what `make` makes, with their usual values.

    Examples:
        >>> def decaying(local_steps: int, factor: float = 0.5): ...
        >>> options_of(decaying)
        {'factor': 0.5}
    """
    found = inspect.signature(make).parameters.values()
    return {one.name: one.default for one in found if type(one.default) in (bool, int, float, str)}


def split(text: str) -> tuple[str, str, str]:
    """Name, option and value of `NAME.OPTION=VALUE`."""
    place, equals, value = text.partition("=")
    name, _, option = place.strip().rpartition(".")
    if not (name and option and equals):
        raise UserError(f"option {text!r} is not understood; write NAME.OPTION=VALUE")
    return name, option.replace("-", "_"), value.strip()


def given_to(name: str, make: Callable[..., Any], texts: Iterable[str]) -> dict[str, Value]:
    """Values of the options that `texts` give to the part `name`."""
    usual = options_of(make)
    found: dict[str, Value] = {}
    for text in texts:
        of, option, value = split(text)
        if of != name:
            continue
        if option not in usual:
            if not usual:
                raise UserError(f"option {text!r} can't be given: {name} has none")
            raise unknown_name(f"option of {name}", option, usual)
        if option in found:
            raise UserError(f"option {name}.{option} is given twice; leave one of them out")
        found[option] = _read(text, value, type(usual[option]))
    return found


def check_usual(name: str, make: Callable[..., Any], given: Iterable[str]) -> None:
    """Refuses a parameter that is not among the `given` ones and has no usual value."""
    single = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for one in inspect.signature(make).parameters.values():
        if one.kind in single and one.default is one.empty and one.name not in given:
            raise UserError(
                f"{name} can't be made without {one.name}; give {one.name} a usual value, such as "
                f"`{one.name}: int = 32`"
            )


def made(
    name: str, make: Callable[..., Any], texts: Iterable[str], known: Mapping[str, Any]
) -> Any:
    """The part `name`, made with its options in `texts`.

    Args:
        known: what is passed to parameters of these names where no option says otherwise; `None`
            is not passed.
    """
    takes = inspect.signature(make).parameters
    passed = {key: value for key, value in known.items() if key in takes and value is not None}
    check_usual(name, make, passed)
    try:
        return make(**{**passed, **given_to(name, make, texts)})
    except UserError:
        raise
    except Exception as error:  # whatever the code of someone else raises
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"{name} can't be made: {reason}") from error


def _read(text: str, value: str, kind: type) -> Value:
    try:
        if kind is bool:
            return _WORDS[value.lower()]
        return kind(value)
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise UserError(f"option {text!r} is not understood; give {wanted}") from None
