"""What becomes of weights and gradients that are not finite.

A worker whose weights are not finite is left out of their mean (see `averaging/level.py`). Its
buffers are seldom better, and become the mean of the others', at inner levels of those in its
innermost block: all who took part know that it was left out, so they can average buffers then, and
at no other sync.

Gradients are averaged with those of all others, in memory of a user's or of DDP's, so what can be
left out is the step: it is taken on no worker that has averaged with this one. Each looks at its
own gradients before they are averaged, and says so in the store if they are not finite. A GPU is
not asked, as that would wait for it in every step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from localsgd.errors import UserError
from localsgd.optimizer.together import Together
from localsgd.reduce.compressor import scale_dtype
from localsgd.rows.shards import local
from localsgd.wire.presence import named

Mend: TypeAlias = Callable[[bool], None]
"""Mends buffers of workers that were left out. It is told whether all workers call it."""


def _nothing(whole: bool) -> None:
    """Buffers stay as they are."""


def go_on_from_mean(
    together: Together,
    inner: Optimizer,
    goes_on: bool,
    mend: Mend = _nothing,
    whole: bool = True,
) -> None:
    """Some workers were left out of the mean that all hold now. All say so.

    Args:
        goes_on: whether this is no error.
        mend: averages buffers, where they should be mended.
        whole: whether the mean was of all workers.
    """
    if together.tell_of_not_finite(goes_on):
        clear_not_finite(inner)
    mend(whole)


@torch.no_grad()
def clear_not_finite(optimizer: Optimizer) -> None:
    """Sets values of the optimizer's state that are not finite to 0, as they would spread again."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor) and value.is_floating_point():
                values = local(value)
                values.masked_fill_(~values.isfinite(), 0)


def seen_not_finite(values: Tensor) -> bool:
    """Whether some scalars are not finite, by one read; a GPU is not asked."""
    if values.device.type != "cpu":
        return False
    total = values.sum(dtype=scale_dtype(values.dtype))
    return not bool(total.isfinite()) and not bool(values.isfinite().all())


def leave_out_step(
    together: Together, goes_on: bool, mend: Mend = _nothing, whole: bool = True
) -> bool:
    """Says whose gradients were not finite.

    Args:
        together: where they have said so.
        goes_on: whether such a step is left out, and is no error.
        mend: averages buffers, where they should be mended.
        whole: whether gradients of all workers were averaged.

    Returns:
        True: the step must not be taken.

    Raises:
        UserError: where that is an error, or all ranks had such gradients.
    """
    presence = together.presence
    assert presence is not None
    ranks = presence.marked()
    who = named(ranks) if ranks else "the mean of all ranks"
    said = f"{who} had gradients that are not finite {presence.event}"
    if not goes_on:
        raise UserError(
            f"{said}, and all weights are as before that step; lower the learning rate, clip "
            'gradients, or let such steps be left out by not_finite="leave_out" (not in a closure)'
        )
    if len(ranks) == len(presence.peers):
        raise UserError(
            f"all ranks had gradients that are not finite {presence.event}, and to leave the step "
            "out would not help; go on from the last state that was saved, with a lower learning "
            "rate or clipped gradients"
        )
    if presence.rank == min(ranks, default=0) and 0 in presence.peers:
        warnings.warn(f"{said}, and that step is left out", stacklevel=2)
    mend(whole)
    return True
