"""`LocalSGD`: the core loop behind a `torch.optim.Optimizer`, for loops of one's own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from localsgd.averaging.delay import NO_DELAY, Delay
from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.errors import UserError
from localsgd.optimizer.averaged_model import average_buffers, averaged
from localsgd.optimizer.inner_optimizer import makes_state
from localsgd.optimizer.join import refuse_join
from localsgd.optimizer.managed import ManagedLevels
from localsgd.optimizer.managing import managed_settings
from localsgd.optimizer.not_finite import leave_out_step
from localsgd.optimizer.peer_errors import others_named_lost
from localsgd.optimizer.resumable import Resumable
from localsgd.optimizer.settings import (
    AverageWhat,
    LocalSteps,
    NotFinite,
    OuterChoice,
    ReducerChoice,
    patience,
    settings_of,
)
from localsgd.optimizer.sharded import check_axes, check_shards, met, peers_of
from localsgd.optimizer.start import (
    Start,
    check_configuration,
    check_group,
    check_or_share_start,
    digest_of_state,
)
from localsgd.optimizer.written import written_forward
from localsgd.wire.engine import Engine
from localsgd.wire.presence import Presence


class LocalSGD(Resumable):
    """An optimizer whose workers average their models only now and then.

        w_k <- w_k - γ g_k               at each step, by the inner optimizer of every worker k
        w_k <- 1/K sum_j w_j             after H steps (Lin et al. 2020, Algorithms 1, 2 and 5)

    Everything of an `Optimizer` works: learning-rate schedulers, closures, hooks, `state_dict` at
    any step, `torch.amp.GradScaler`, deep copies (of model and optimizer together). A worker is
    one process, or several that share a model by FSDP2, tensor parallelism or a pipeline. Without
    `torch.distributed` there is one worker, and this is the inner optimizer.

    Examples:
        >>> model = torch.nn.Linear(2, 1)
        >>> inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> optimizer = LocalSGD(inner, model, local_steps=8)
        >>> for _ in range(20):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(4, 2)).sum().backward()
        ...     optimizer.step()
        >>> optimizer.finish()

    Args:
        inner: takes the local steps. Its trainable parameters are synchronised; which they are is
            fixed here.
        model: that they belong to, as it is or in `DistributedDataParallel` or `torch.compile`.
        local_steps: H, as a number or a schedule; for several levels a list with one for each,
            innermost first.
        topology: how workers nest, such as `"4x2"` (4 blocks of 2) or a `DeviceMesh` with an axis
            for each level; one flat group where not given. For workers of several processes the
            part of their mesh that is across workers, such as `mesh["replicate"]`.
        average: `"models"` averages models after the step (the paper); `"gradients"` averages
            gradients before it at levels that have averaged after every step so far, so that
            momenta are shared; `"auto"` does the second where it can.
        reducer: how updates become their mean: a name as on the command line (`"ef-sign"`), an
            object of `localsgd.reduce`, or `None` for the exact mean. One value is the outermost
            level's, and the levels inside take the exact mean; a list has one for each level.
        outer: what happens to the mean update: a name (`"diloco"`), one of `localsgd.outer`, a
            `functools.partial` of any `torch.optim` optimizer, or `None` for plain averaging. One
            value is the outermost level's; a list has one for each level.
        delay: of the outermost level's syncs: means that are applied later, fragments of the
            model that synchronise in turns.
        inner_state: what becomes of the inner optimizer's state when the outermost level averages
            models, by key: keep (if nothing is said), average or reset, with a period, such as
            `"exp_avg=average,exp_avg_sq=average:4"` or `"all=reset"`.
        start: `"check"` that all ranks start from the same weights, or `"broadcast"` rank 0's.
        not_finite: what becomes of a sync in which some workers' weights have NaN or infinity. They
            are left out of an exact mean in any case; then `"error"` raises on all ranks, and
            `"leave_out"` goes on from the mean of the others, who go on with it. Where gradients
            are averaged the step is left out on all ranks. Nothing is asked of a GPU.
        timeout: of a collective; must outlast the longest time by which a rank may be behind, and
            so the slowest round. A `timedelta`, or seconds.
        fault_tolerance: an engine that joins workers which come and go, such as
            `localsgd.integrations.torchft.Managed(manager)`. `membership` then says who is there.

    Raises:
        UserError: where something of this can't work, or differs between ranks.
    """

    _step_supports_amp_scaling = True
    join_hook = staticmethod(refuse_join)

    def __init__(
        self,
        inner: Optimizer,
        model: nn.Module,
        *,
        local_steps: LocalSteps,
        topology: str | int | Topology | DeviceMesh | None = None,
        average: AverageWhat = "auto",
        reducer: ReducerChoice | Sequence[ReducerChoice] = None,
        outer: OuterChoice | Sequence[OuterChoice] = None,
        delay: Delay = NO_DELAY,
        inner_state: str = "",
        start: Start = "check",
        not_finite: NotFinite = "error",
        timeout: timedelta | float = timedelta(hours=2),
        fault_tolerance: Engine | None = None,
    ) -> None:
        limit = patience(timeout)
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        check_axes(topology, model)
        peers = peers_of(topology, ranks)
        settings = settings_of(
            len(peers),
            local_steps,
            topology,
            average,
            reducer,
            outer,
            delay,
            inner_state,
            not_finite,
        )
        if fault_tolerance is not None:
            settings = managed_settings(settings, ranks, fault_tolerance, outer)
            rows = self._adopt(inner, model, fault_tolerance.workers or ranks)
            self._join(settings, rows, fault_tolerance, limit)
            return
        check_group(ranks, made=False)
        rows = self._adopt(inner, model, len(peers))
        presence = Presence.of_processes(limit)
        with others_named_lost(presence):
            grid = met(presence, peers)
            check_shards(self._module, rows, grid.worker(dist.get_rank() if presence else 0))
            check_configuration({**settings.described(), "start": start}, inner, rows, grid)
            # A state may be saved by one rank alone while a mean is on its way.
            late = settings.delay.syncs > 0 and rows[0].values.device.type == "cpu"
            placement = placement_of(settings.topology, limit, presence, late, grid)
            check_or_share_start(start, self._module, rows, placement)
        self._set_up(settings, placement, presence, rows, watched=True)
        self._loop.open()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds tensors that don't train; the synchronised ones are fixed at the start."""
        self._untrained.add(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)
        self._gradients.reopen()  # Averaged ones may have been dropped without a step.

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One local step, then the sync that is due, if any.

        A step that a `GradScaler` skips counts like any other.

        Args:
            closure: evaluates the model anew. While gradients are averaged, the loss that it gives
                to the inner optimizer, and that is returned, is the mean over the workers too.

        Raises:
            PeerLost: another rank has ended, or not answered within `timeout`.
        """
        self._guards.part.check_not_shown("step", "would train the average")
        if closure is None and makes_state(self.inner):
            with self._guards.inner.own():
                return self.inner.step()
        with self._named():
            return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        self._guards.begin_step()
        if self._loop.position.left[0] == 0:  # A schedule has failed after the last sync.
            self._loop.open()
        if not self._compared:
            self._begin()
        if closure is None:
            self._fsdp.check_some_gradient(self._rows)
        self._loop.begin()
        loss = None
        with self._guards.inner.own():
            if closure is not None:
                loss = self.inner.step(lambda: self._evaluate(closure))
            elif not self._gradients.average_scaled(self, self.inner):
                loss = self._guards.inner.step()
        self._guards.stepped(first=self.steps == 0)
        self._gradients.end_step()
        if self.membership is not None:
            self.membership.stepped()
        if depth := self._loop.stepped():
            self._before_sync(depth)
            self._loop.sync(meanwhile=self._loop.open)  # DDP must know before it makes gradients.
        self._guards.end_step(self._loop.all_averaged)
        self._together.stepped(self.steps)
        self._pass()
        return loss

    def _before_sync(self, depth: int) -> None:
        self._guards.modules.check()
        levels = self._settings.levels
        self._together.syncs(self.steps, depth if levels > 1 else None)
        self._untrained.check()
        self._fsdp.reshard()
        if depth == levels:
            self._guards.before_world()

    def _begin(self) -> None:
        """Before the first step here: do all ranks go on from the same place?"""
        if self.membership is None and self.agreement.alone:
            check_group(self.workers, made=True)
        free = self._loaded or any(True for _ in written_forward(self._module))
        inner = ""
        if not free and self._gradients.lockstep == self._settings.levels:
            inner = digest_of_state(self.inner).hex()
        self._together.check_start(self.steps, repr(self._loop.position), free, inner)
        self._compared = True
        if self._loop.all_averaged:
            self._models.catch_up()  # Weights may have been loaded since this was made.

    def average_gradients(self) -> None:
        """Averages gradients now where `step()` would do so first, and only once.

        For clipping by the norm of the averaged gradients, without DDP (which has averaged them by
        the end of the backward pass): call this, clip, then step. In a local phase nothing happens.
        Without a step, `zero_grad()` of this optimizer (not the model's) begins anew.
        """
        with self._named():
            self._gradients.average_early()

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
        if self._gradients.not_finite(self._gradients.average()):
            leave_out_step(self._together, goes_on=False)
        self._gradients.reopen()  # The closure may be called again in this step.
        if loss is not None and "loss" in self._reports.wanted:
            self.report_loss(loss)
        return self._gradients.mean_loss(loss)

    def report_loss(self, loss: Tensor | float) -> None:
        """Tells schedules that judge by the training loss what this worker's batch had.

        Once for each step, before or after it; a closure's loss is taken without.
        """
        self.report(loss=loss)

    def report(self, *unnamed: object, **numbers: Tensor | float) -> None:
        """Tells schedules what this worker has found at this step, such as `gradient_norm=...`.

        A schedule with `sees = ("reported:gradient_norm",)` finds the mean over all workers and
        over the steps since the last sync in `progress.reported["gradient_norm"]`. A number that
        no schedule looks at is ignored.
        """
        if unnamed:
            raise UserError(
                f"report({unnamed[0]!r}) has no name for its number; give it one, which a schedule "
                'names in sees = ("reported:NAME",): optimizer.report(NAME=...), or '
                "report_loss(...) for the training loss"
            )
        self._reports.add(numbers)

    def finish(self) -> None:
        """The last sync: all workers hold the averaged model afterwards, and its buffers.

        Collective. Call it wherever the run ends; again is harmless. A run that goes on begins new
        rounds.
        """
        self._guards.part.check_not_shown("finish", "would be undone at its end")
        self._guards.inner.check_finish(self.steps)
        if self._finished_at == self.steps:
            return
        with self._named():
            self._finish()
            self._pass()

    def _finish(self) -> None:
        differ = self._together.differ("finish()", self.steps, self._loop.all_averaged)
        if differ or not self._loop.all_averaged:
            self._guards.modules.check()
            self._untrained.check()
            self._fsdp.reshard()
        if self._loop.finish(differ):
            self._loop.open()
        average_buffers(self._module, self._placement.world)
        if isinstance(self._models, ManagedLevels):
            self._models.show_buffers()
        self._finished_at = self.steps
        self._guards.end_step(self._loop.all_averaged)

    @contextmanager
    def averaged_model(self) -> Generator[nn.Module]:
        """A context in which the model is the mean of all workers' models, and itself again after.

        With `fault_tolerance` it is the mean of the last sync, and nobody else need enter.

        Parameters are averaged over all workers, wherever they are in their rounds; batch-norm
        variances get the term between workers. Collective: all ranks must enter. For evaluation and
        for saving.
        """
        if self._guards.part.shown:
            yield self.model
            return
        self._fsdp.reshard()
        self._guards.modules.check()
        for row in self._rows:
            row.check_in_place()
        if isinstance(self._models, ManagedLevels):
            with self._models.shown(), self._guards.part.showing():
                self._guards.seen()
                with self._guards.inside.watched(undone=True):
                    yield self.model
            return
        equal = self._loop.all_averaged
        with ExitStack() as held, self._guards.part.showing():
            with self._named():
                differ = self._together.differ("averaged_model()", self.steps, equal) or not equal
                says = self._together.says_not_finite
                left_out = held.enter_context(
                    averaged(
                        self._module,
                        self._rows,
                        self._placement.world,
                        differ,
                        self.agreement,
                        says,
                    )
                )
                if left_out:
                    self._left_out()
                self._pass()
            self._guards.seen()
            with self._guards.inside.watched(undone=differ):
                yield self.model
