"""The command lines of benchmarks: how they end, and those that take a number of turns alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec

from benchmarks.network.refusal import Refused
from localsgd.errors import UserError

P = ParamSpec("P")


def ended(main: Callable[P, bool]) -> Callable[P, int]:
    """The exit status of `main`, which says whether all bounds hold: 0, or 1 where one is missed.

    A refusal is one line and a 2, Ctrl-C a 130.
    """

    @wraps(main)
    def status(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return 0 if main(*args, **kwargs) else 1
        except (Refused, UserError) as error:
            print(f"benchmarks.network: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130

    return status


def turns_of(arguments: Sequence[str], module: str, usual: int) -> int:
    """The number given, 1 or more, else the usual one; anything else ends the command."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.network.{module}")
    parser.add_argument("turns", nargs="?", type=int, default=usual, help=f"{usual} if not given")
    turns = parser.parse_args(arguments).turns
    if turns < 1:
        parser.error(f"{turns} turns measure nothing; give 1 or more")
    return turns
