"""The order of samples that follow one another, as in a text.

The N samples are a ring, on which K B streams start evenly spaced, B for each worker. At each step
a stream takes its next sample, so that what a model carries from one step to the next belongs to
what comes before. A stream goes on where the next one began: all samples are read about equally
often, and none is left out.

Everything follows from (step, worker): a run resumes at any step, however it is hosted.

Shapes: N training samples · K workers · B streams of a worker.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from localsgd.basics.units import plural
from localsgd.errors import UserError


@dataclass(frozen=True)
class Streams:
    """The batches of K workers; row b of a worker's batch is of its stream b.

    Args:
        samples: N.
        workers: K.
        batch: B.
        seed: of the run; there is nothing to draw.
    """

    samples: int
    workers: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        if self.samples < self.workers * self.batch:
            raise UserError(
                f"{plural(self.samples, 'segment')} of text: too few for "
                f"{plural(self.workers, 'worker')} x {plural(self.batch, 'stream')}; use fewer "
                "workers or a smaller batch"
            )

    @property
    def steps_per_epoch(self) -> float:
        """N / (K B), not rounded: the budget of a run is counted in samples."""
        return self.samples / (self.workers * self.batch)

    def indices(self, worker: int, step: int) -> Tensor:
        """The samples of `worker` at local step `step`: `[B]`."""
        streams = worker * self.batch + torch.arange(self.batch)
        starts = streams * self.samples // (self.workers * self.batch)
        return (starts + step) % self.samples
