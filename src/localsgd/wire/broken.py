"""Recognises errors of `torch.distributed` that mean that another process has gone."""

from __future__ import annotations

import re

import torch.distributed as dist

_BROKEN = ("onnection closed", "onnection reset", "onnection refused", "roken pipe", "ocket closed")
_LATE = ("imed out waiting", "pplication timeout")
_PLACE = re.compile(r"^\[[^\]]*\]\s*")
"""The place in the backend's source at the beginning of an error's text."""


def is_broken_connection(error: BaseException) -> bool:
    """Whether `error` means that another process has gone."""
    return isinstance(error, dist.DistError) or _says(error, _BROKEN)


def is_late(error: BaseException) -> bool:
    """Whether `error` means that another process has not answered in time."""
    return _says(error, _LATE)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, without the place in the backend's source."""
    return _PLACE.sub("", next(iter(str(error).splitlines()), ""))


def _says(error: BaseException, signs: tuple[str, ...]) -> bool:
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
