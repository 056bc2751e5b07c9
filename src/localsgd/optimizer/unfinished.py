"""Warns at the end of the program if the last steps were never averaged."""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from functools import cache
from multiprocessing.util import Finalize

from torch import nn

from localsgd.basics.units import plural


class Unfinished:
    """Counts the steps since the model was last averaged, or shown as an average.

    Args:
        module: the model; a later LocalSGD of it replaces this one.
        workers: K; with one there is nothing to average.
        rank: of this process; the first one warns.
    """

    def __init__(self, module: nn.Module, workers: int, rank: int) -> None:
        self._key = id(module)
        self._speaks = workers > 1 and rank == 0
        self.steps = 0

        for key in [key for key, (owner, _) in _open.items() if owner() is None]:
            del _open[key]  # The program goes on without that model.

    def step(self) -> None:
        self.steps += 1
        if self._speaks:
            _warn_at_the_end_of(os.getpid())  # A forked process forgets what was registered.
            _open[self._key] = weakref.ref(self), self.steps

    def averaged(self) -> None:
        self.steps = 0
        if self._speaks:
            _open.pop(self._key, None)


_open: dict[int, tuple[weakref.ref[Unfinished], int]] = {}
"""Steps by the id of their model, which may no longer exist at the end of the program."""


def _warn() -> None:
    # A program that an error has ended is not unfinished by mistake. In a process of
    # multiprocessing the error is still on its way.
    ended_by_error = sys.exc_info()[1] is not None or getattr(sys, "last_value", None) is not None
    if _open and not ended_by_error:
        steps = max(steps for _, steps in _open.values())
        warnings.warn(
            f"the program ends {plural(steps, 'step')} after the last sync of LocalSGD, and "
            "finish() was not called: ranks hold different models; call optimizer.finish() on all "
            "at the end, and save after it (or inside averaged_model())",
            stacklevel=1,
        )


@cache
def _warn_at_the_end_of(process: int) -> None:
    # Unlike `atexit`, this also runs at the end of a process started by multiprocessing.
    Finalize(None, _warn, exitpriority=0)
