"""The average of all workers' models, put in place and taken out again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from localsgd.averaging.buffers import KeptBuffers, mean_buffers, put_buffers
from localsgd.averaging.derived import renew, renew_attributes
from localsgd.averaging.level import Spare, leave_out, made_up
from localsgd.reduce import ExactMean
from localsgd.rows.model_rows import Row
from localsgd.wire import Collective


def average_buffers(model: nn.Module, world: Collective) -> None:
    """The buffers of all workers become those of the averaged model."""
    if world.members > 1:
        put_buffers(model, mean_buffers([model], world))
        renew(model)


@contextmanager
def averaged(
    model: nn.Module,
    rows: Sequence[Row],
    world: Collective,
    rows_differ: bool,
    says: Callable[[], None] = lambda: None,
) -> Generator[bool]:
    """Inside, the model holds the mean of all workers' rows and buffers; afterwards its own bits.

    Gives whether the mean is without some workers, whose rows were not finite.

    Args:
        rows_differ: whether workers may hold different rows; where not, they stay as they are.
        says: called before this worker is left out.
    """
    changing = rows if rows_differ else ()
    own_rows = [row.values.clone() for row in changing]
    own_buffers = KeptBuffers(model)
    try:
        left_out = [_average(row, world, says) for row in changing]
        average_buffers(model, world)
        yield any(left_out)
    finally:
        for row, own in zip(changing, own_rows, strict=True):
            row.values.copy_(own)
        own_buffers.restore()
        renew_attributes(model)


@torch.no_grad()
def _average(row: Row, world: Collective, says: Callable[[], None]) -> bool:
    """Whether some were left out; on a GPU nobody asks."""
    spare = row.layout.spare
    values = row.values[None, None]
    if spare is None or world.members == 1:
        return False
    leave_out(values, Spare([spare], says))
    mean = ExactMean().reduce(values, None, world).wait()
    share = made_up(mean, spare, world.members, None)
    return share is not None and share.device.type == "cpu"
