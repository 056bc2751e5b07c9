"""The command line of a benchmark that is asked for nothing but a number of turns."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def turns_of(arguments: Sequence[str], module: str, usual: int) -> int:
    """The number given, 1 or more, else the usual one; anything else ends the command."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.network.{module}")
    parser.add_argument("turns", nargs="?", type=int, default=usual, help=f"{usual} if not given")
    turns = parser.parse_args(arguments).turns
    if turns < 1:
        parser.error(f"{turns} turns measure nothing; give 1 or more")
    return turns
