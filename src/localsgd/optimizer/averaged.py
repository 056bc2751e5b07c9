"""The average of all workers' models, put in place and taken out again."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from torch import nn

from localsgd.collective import Collective
from localsgd.optimizer.rows import Row
from localsgd.reduce import ExactMean
from localsgd.workers.buffers import KeptBuffers, mean_buffers, put_buffers
from localsgd.workers.derived import renew, renew_attributes


def average_buffers(model: nn.Module, world: Collective) -> None:
    """The buffers of all workers become those of the agreed model."""
    if world.members > 1:
        put_buffers(model, mean_buffers([model], world))
        renew(model)


@contextmanager
def averaged(
    model: nn.Module, rows: Sequence[Row], world: Collective, rows_differ: bool
) -> Generator[None]:
    """Inside, the model holds the mean of all workers' rows and buffers; afterwards its own bits.

    Args:
        rows_differ: whether workers may hold different rows; where not, they stay as they are.
    """
    changing = rows if rows_differ else ()
    own_rows = [row.values.clone() for row in changing]
    own_buffers = KeptBuffers(model)
    try:
        for row in changing:
            ExactMean().reduce(row.values[None, None], None, world).wait()
        average_buffers(model, world)
        yield
    finally:
        for row, own in zip(changing, own_rows, strict=True):
            row.values.copy_(own)
        own_buffers.restore()
        renew_attributes(model)
