"""Work that is divided among several commands, as `--shard 2/3` says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from localsgd.errors import UserError

T = TypeVar("T")


def shard_of(text: str) -> tuple[int, int]:
    """I and N of `I/N`, from 1/N to N/N."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise UserError(f"shard {text!r} is not understood; write 1/3, 2/3 or 3/3")
    return int(index), int(count)


def share(work: Sequence[T], text: str) -> list[T]:
    """`2/3`: every third piece of work, from the second on. Together all shares have each once."""
    index, count = shard_of(text)
    return list(work[index - 1 :: count])
