"""Averages gradients: during the backward pass of DDP, or else in the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from localsgd.averaging.build import build_levels
from localsgd.averaging.level import average_and_share
from localsgd.averaging.placement import AnyLevel, Placement, row_multiple
from localsgd.optimizer.amp import all_finite, finite, gradients_of, unscale
from localsgd.optimizer.consistency import SameBatch
from localsgd.optimizer.ddp import Overlap, averaging_behind, overlap_of, quieten
from localsgd.optimizer.fsdp import ShardOverlap, overlap_of_shards
from localsgd.optimizer.gradient_packs import call_after_backward, packs_of
from localsgd.optimizer.not_finite import seen_not_finite
from localsgd.optimizer.settings import Settings
from localsgd.optimizer.sharded import Agreement
from localsgd.reduce import ExactMean
from localsgd.reduce.compressor import widest
from localsgd.rows.model_rows import Row
from localsgd.schedule.signals import FLAGS
from localsgd.wire import Ledger


class GradientAveraging:
    """Averages the gradients of one worker over its block, on the levels that average gradients.

    Args:
        rows: the rows of the parameters.
        placement: where the other workers are.
        settings: which levels may average gradients.
        module: the model.
        agreement: with the other ranks of this worker.
        ledger: counts the traffic, together with that of the models.
        ddp: the user's model, if it is in `DistributedDataParallel`.
        watched: whether the first gradients are compared among all workers.
        flags: numbers that this worker sends to all others with its gradients, if any.
        named: a context in which the loss of a rank becomes `PeerLost`.
        says: called before gradients of this worker that are not finite are averaged.
        leave_out: called where averaged ones are not, with whether those of all workers were; says
            whether the step is left out, or raises.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        placement: Placement,
        settings: Settings,
        ledger: Ledger,
        module: nn.Module,
        agreement: Agreement,
        ddp: DistributedDataParallel | None,
        watched: bool,
        flags: Callable[[], Sequence[float]] | None = None,
        named: Callable[[], AbstractContextManager[None]] = nullcontext,
        says: Callable[[], None] = lambda: None,
        leave_out: Callable[[bool], bool] = lambda whole: True,
    ) -> None:
        self._placement = placement
        self._settings = settings
        self._ledger = ledger
        self._agreement = agreement
        self._ddp = ddp
        self._device = rows[0].values.device
        self.exact = settings.exact
        self._exact = settings.exact if placement.world.members > 1 else 0
        self._multiple = multiple = row_multiple(placement.world.members)
        # Ranks of a worker must use equal flags, and these would come from their peers alone.
        self._flags = flags = flags if agreement.alone else None
        self._says = says
        self._leave_out = leave_out
        self._carried: Tensor | None = None
        extra = FLAGS if flags else 0
        self._packs = [pack for row in rows for pack in packs_of(row, multiple, extra)]
        self.watch = SameBatch() if watched and placement.world.members > 1 else None
        self.lockstep = 0
        self.averaged = False
        self._finite: Tensor | None = None
        self._followed: set[int] = set()  # parameters, by their ids
        self._overlap: Overlap | ShardOverlap | None = None
        padding = multiple if placement.topology.levels > 1 else 1
        if ddp is not None:
            quieten(ddp, owner=self)
            if self._exact:
                synchronised = {id(p) for row in rows for p in row.parameters}
                self._overlap = overlap_of(ddp, synchronised, padding)
        elif self._exact:
            self._overlap = overlap_of_shards(module, rows, padding)
        if self._overlap is not None:
            self._overlap.named = named
            self._overlap.says = says

    def set_lockstep(self, lockstep: int) -> None:
        """From now on the gradients of the `lockstep` innermost levels are averaged."""
        self.lockstep = min(lockstep, self._exact)
        if isinstance(self._overlap, ShardOverlap):
            self._overlap.make_levels = self._levels if self.lockstep else None
            self._overlap.same_batch = self.watch
        if self._ddp is None:
            return
        # With find_unused_parameters DDP treats a parameter that any process used as used by all,
        # which is right for a block only if it is the world.
        whole = self.lockstep == self._settings.levels or not self._ddp.find_unused_parameters
        overlapping = self._overlap is not None and self.lockstep > 0 and whole
        self._ddp.require_backward_grad_sync = overlapping
        if isinstance(self._overlap, Overlap):
            self._overlap.make_levels = self._levels if overlapping else None
            self._overlap.same_batch = self.watch
            whole_world = self.lockstep == self._settings.levels
            self._overlap.flags = self._flags if whole_world else None

    def _levels(self, row: Tensor) -> Sequence[AnyLevel]:
        exact = self._exact
        means = [r if i < exact else ExactMean() for i, r in enumerate(self._settings.reducers)]
        levels = build_levels(self._placement, row[None], reducers=means, ledger=self._ledger)
        return levels[: self.lockstep]

    @torch.no_grad()
    def average(self, mark: bool = False) -> list[Tensor]:
        """Averages the gradients, unless that has been done for this step.

        Returns:
            The share of workers in the block that set their `mark`, or whose gradients were seen
            not to be finite, once for each pack.
        """
        if self._overlap is not None and self._overlap.averaged:
            self.averaged = True
        if self.averaged:
            return []
        if self.watch is not None:
            self.watch.add(self._gradients())
        if not self.lockstep:
            return []
        self.averaged = True
        whole = self._flags is not None and self.lockstep == self._settings.levels
        flags = self._flags() if whole and self._flags is not None else ()
        found = [pack.average(self._levels, mark, flags, self._says) for pack in self._packs]
        if whole:
            self._carried = found[0][1].clone()
        return [mean for mean, _ in found]

    def average_scaled(self, wrapper: Optimizer, inner: Optimizer) -> bool:
        """Averages what a `GradScaler` may have scaled; says whether the step is skipped.

        Args:
            wrapper: has what the scaler says, if there is one.
            inner: has the gradients.
        """
        scale: Tensor | None = getattr(wrapper, "grad_scale", None)
        found: Tensor | None = getattr(wrapper, "found_inf", None)
        if scale is not None:
            unscale(inner, scale)
        if found is not None:
            self._agreement.check_scaler()
            found = self._agreement.any(found)
        skip = found is not None and bool(found)
        averaged_before = self.averaged
        marks = self.average(mark=skip)
        if found is None:
            whole = self.lockstep == self._settings.levels
            return self.not_finite(marks) and self._leave_out(whole)
        if skip:
            return True
        if averaged_before:
            return not self.all_finite(inner)
        return bool(marks) and self._is_anywhere(
            bool(torch.stack([mark.float() for mark in marks]).max() > 0)
        )

    def take_carried(self) -> Tensor | None:
        """The mean of all workers' flags, once, if it has come with the gradients."""
        carried, self._carried = self._carried, None
        if isinstance(self._overlap, Overlap) and self._overlap.carried is not None:
            carried, self._overlap.carried = self._overlap.carried, None
        return carried

    def average_early(self) -> None:
        """Averages before the step, and remembers whether the means are finite.

        What the user does next, such as clipping by value, may hide that they are not.
        """
        if self.averaged:
            return
        self.average()
        if self.averaged:
            trained = {id(p): p for p in self._parameters() if p.requires_grad}
            new = [p for key, p in trained.items() if key not in self._followed]
            call_after_backward(new, self._own_again)
            self._followed |= trained.keys()
            self._finite = finite(self._gradients())

    def _own_again(self) -> None:
        """Asks for another average, since a backward pass has added to a gradient.

        The part that was averaged before is equal on all workers, and stays as it is.
        """
        if self._overlap is None or not self._overlap.averaged:
            self.averaged = False

    def _parameters(self) -> Iterator[Tensor]:
        return (p for pack in self._packs for p in pack.parameters)

    def _gradients(self) -> Iterator[Tensor]:
        return gradients_of(self._parameters())

    def all_finite(self, optimizer: Optimizer) -> bool:
        """Whether the averaged gradients are finite, and were so when they were averaged early."""
        own = (self._finite is None or bool(self._finite)) and all_finite(optimizer)
        return not self._is_anywhere(not own)

    def _is_anywhere(self, found: bool) -> bool:
        """Whether any rank of this worker has `found` it."""
        if self._agreement.alone:
            return found
        return bool(self._agreement.any(torch.tensor(found, device=self._device)))

    def not_finite(self, marks: Sequence[Tensor]) -> bool:
        """Whether averaged gradients are seen not to be finite; then the next are averaged anew.

        Args:
            marks: as `average` has just returned them.
        """
        if not self.averaged or self._device.type != "cpu":
            return False
        if marks:
            found = any(float(mark) > 0 for mark in marks)
        else:
            hidden = self._finite is not None and not bool(self._finite)
            found = hidden or any(map(seen_not_finite, self._gradients()))
        found = self._is_anywhere(found)
        if found:
            self.reopen()
        return found

    @torch.no_grad()
    def mean_loss(self, loss: Any) -> Any:
        """The mean of the block's losses, so that all workers decide by the same number."""
        if loss is None or not self.lockstep:
            return loss
        row = torch.zeros(self._multiple, dtype=widest(self._device), device=self._device)
        row[0] = loss
        average_and_share(self._levels(row))
        return row[0].to(loss) if isinstance(loss, Tensor) else row[0].item()

    def reopen(self) -> None:
        """Forgets that gradients were averaged: the next ones are each worker's own again."""
        self.averaged = False
        self._finite = None
        if self._overlap is not None:
            self._overlap.averaged = False

    def end_step(self) -> None:
        """Ends a step. After the first one, the workers' gradients are compared."""
        self.reopen()
        if self.watch is not None:
            self.watch.warn(
                self._placement.world,
                self._device,
                self._placement.rank == 0,
                lambda: averaging_behind(self._parameters(), self._ddp),
            )
            self.watch = None
            if self._overlap is not None:
                self._overlap.same_batch = None
