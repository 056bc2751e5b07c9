"""The order of samples: which ones a worker takes at which step, for any number of processes.

Every epoch the training set is shuffled as a whole and dealt out in K disjoint parts (Lin et al.
2020, A.4.1). A worker reads its parts one after the other in batches of B, so a batch may end one
epoch and begin the next, and every batch is full. Each epoch leaves out N mod K samples, other ones
each time.

Everything follows from (seed, purpose, epoch or step, worker): nothing is remembered, so a run
resumes at any step.

Shapes: N training samples · K workers · B samples of a local batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from localsgd.basics.seeds import generator_for
from localsgd.basics.units import plural
from localsgd.errors import UserError


@dataclass(frozen=True)
class Order:
    """The batches of K workers.

    Args:
        samples: N.
        workers: K.
        batch: B.
        seed: of the run.
        parts: the samples that each worker owns, if they are not dealt out anew. Each worker
            then reads its own over and over, in another order every time; sizes may differ.
    """

    samples: int
    workers: int
    batch: int
    seed: int
    parts: tuple[Tensor, ...] = ()
    _shuffled: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)
    _orders: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.samples < self.workers * self.batch:
            raise UserError(
                f"{plural(self.samples, 'training sample')}: too few for "
                f"{plural(self.workers, 'worker')} x batch {self.batch} = "
                f"{plural(self.workers * self.batch, 'sample')} a step; use fewer workers or a "
                "smaller batch"
            )
        for worker, own in enumerate(self.parts):
            if not len(own):
                raise UserError(
                    f"worker {worker} of {self.workers} owns no sample; use fewer workers, or a "
                    "partition that gives everybody some (dirichlet with a larger alpha)"
                )

    @property
    def part(self) -> int:
        """Samples of a worker in one epoch: N // K."""
        return self.samples // self.workers

    @property
    def steps_per_epoch(self) -> float:
        """N / (K B), not rounded: the budget of a run is counted in samples."""
        return self.samples / (self.workers * self.batch)

    def partition(self, epoch: int) -> Tensor:
        """The samples of all workers in an epoch: `[K, N // K]`."""
        if epoch not in self._shuffled:
            for old in [known for known in self._shuffled if known < epoch - 1]:
                del self._shuffled[old]
            shuffled = torch.randperm(
                self.samples, generator=generator_for(self.seed, "order", epoch)
            )
            self._shuffled[epoch] = shuffled[: self.workers * self.part].view(self.workers, -1)
        return self._shuffled[epoch]

    def owned(self, worker: int, epoch: int) -> Tensor:
        """The samples that `worker` owns, as it reads them for the `epoch`-th time: `[n_k]`."""
        if (epoch, worker) not in self._orders:
            for old in [k for k in self._orders if k[1] == worker and k[0] < epoch - 1]:
                del self._orders[old]
            own = self.parts[worker]
            draw = generator_for(self.seed, "order", epoch, worker)
            self._orders[epoch, worker] = own[torch.randperm(len(own), generator=draw)]
        return self._orders[epoch, worker]

    def _owned_indices(self, worker: int, step: int) -> Tensor:
        epoch, first = divmod(step * self.batch, len(self.parts[worker]))
        taken = self.owned(worker, epoch)[first : first + self.batch]
        while len(taken) < self.batch:  # a worker may own less than a batch
            epoch += 1
            more = self.owned(worker, epoch)[: self.batch - len(taken)]
            taken = torch.cat([taken, more])
        return taken

    def indices(self, worker: int, step: int) -> Tensor:
        """The samples of `worker` at its local step `step`: `[B]`."""
        if self.parts:
            return self._owned_indices(worker, step)
        epoch, first = divmod(step * self.batch, self.part)
        taken = self.partition(epoch)[worker, first : first + self.batch]
        missing = self.batch - taken.numel()
        if missing:  # B <= N // K, so one further epoch is enough
            taken = torch.cat([taken, self.partition(epoch + 1)[worker, :missing]])
        return taken
