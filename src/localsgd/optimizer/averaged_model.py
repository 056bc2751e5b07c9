"""Puts the average of all workers' models in place, and takes it out again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from localsgd.averaging.buffers import (
    KeptBuffers,
    mean_buffers,
    not_finite,
    persistent,
    put_buffers,
)
from localsgd.averaging.derived import renew, renew_attributes
from localsgd.averaging.level import Spare, leave_out, made_up
from localsgd.averaging.placement import Placement
from localsgd.optimizer.sharded import Agreement
from localsgd.reduce import ExactMean
from localsgd.rows.model_rows import Row
from localsgd.rows.shards import reshard
from localsgd.wire import Collective


def average_buffers(model: nn.Module, world: Collective) -> None:
    """Sets the buffers of all workers to those of the averaged model."""
    if world.members > 1:
        put_buffers(model, mean_buffers([model], world))
        renew(model)


def mend_buffers(model: nn.Module, placement: Placement, whole: bool) -> None:
    """Buffers of a worker that are not finite become the mean of the others'.

    Args:
        whole: whether all workers call this; otherwise those of a block of the innermost level do.
    """
    found = mean_buffers(
        [model], placement.world if whole else placement.hosted_levels[0].collective
    )
    if not_finite(persistent(model)) > not_finite(found):
        put_buffers(model, found)
        renew(model)


@contextmanager
def averaged(
    model: nn.Module,
    rows: Sequence[Row],
    world: Collective,
    rows_differ: bool,
    agreement: Agreement | None = None,
    says: Callable[[], None] = lambda: None,
) -> Generator[bool]:
    """A context in which the model holds the mean of all workers; its own bits come back after it.

    Yields whether some workers were left out of the mean because their rows were not finite.

    Args:
        rows_differ: whether workers may hold different rows; otherwise rows stay as they are.
        agreement: with the other ranks of this worker, if there are some.
        says: called before this worker is left out.
    """
    changing = rows if rows_differ else ()
    saved_rows = [row.fill().clone() for row in changing]
    saved_buffers = KeptBuffers(model)
    reshard(model)
    try:
        several = world.members > 1
        seen = rows_differ and agreement is not None and agreement.spread_not_finite(several)
        left_out = [_average(row, world, says, seen) for row in changing]
        for row in changing:
            row.empty()
        average_buffers(model, world)
        yield any(left_out)
    finally:
        reshard(model)
        for row, saved in zip(changing, saved_rows, strict=True):
            row.values.copy_(saved)
            row.empty()
        saved_buffers.restore()
        renew_attributes(model)


@torch.no_grad()
def _average(row: Row, world: Collective, says: Callable[[], None], seen: bool) -> bool:
    """Averages a row; returns whether workers were left out, or `False` on a GPU.

    Args:
        seen: whether the row is known to be finite.
    """
    spare = row.layout.spare
    values = row.values[None, None]
    if spare is None or world.members == 1:
        return False
    if not seen:
        leave_out(values, Spare([spare], says))
    mean = ExactMean().reduce(values, None, world).wait()
    share = made_up(mean, spare, world.members)
    return share is not None and share.device.type == "cpu"
