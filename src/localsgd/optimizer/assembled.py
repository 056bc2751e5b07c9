"""The parts of `LocalSGD`: how they are put together, and what they can tell."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from localsgd.averaging.inner_state import InnerStates
from localsgd.averaging.placement import Placement, row_multiple
from localsgd.basics.units import plural
from localsgd.loop import Loop
from localsgd.optimizer.averaged_model import mend_buffers
from localsgd.optimizer.ddp import unwrapped
from localsgd.optimizer.gradient_averaging import GradientAveraging
from localsgd.optimizer.guards import Guards
from localsgd.optimizer.inner_optimizer import check_inner
from localsgd.optimizer.managed import ManagedLevels, managed_placement
from localsgd.optimizer.managing import Newcomers, likeness
from localsgd.optimizer.membership import Membership
from localsgd.optimizer.metrics import metrics_of
from localsgd.optimizer.model_levels import ModelLevels
from localsgd.optimizer.not_finite import go_on_from_mean, leave_out_step
from localsgd.optimizer.reports import Reports
from localsgd.optimizer.settings import Settings
from localsgd.optimizer.sharded import Agreement, Fsdp, check_backends, check_wrappers
from localsgd.optimizer.together import Together
from localsgd.optimizer.untrained import Untrained
from localsgd.optimizer.wrapping import Wrapping
from localsgd.rows.model_rows import Row, rows_of
from localsgd.schedule.rounds import Position
from localsgd.wire import Ledger
from localsgd.wire.engine import Engine
from localsgd.wire.metered import Metered
from localsgd.wire.presence import Presence


def _nothing() -> None:
    """Workers that come and go tell each other what schedules see in the sync itself."""


class Assembled(Wrapping):
    """What `LocalSGD` consists of: the model's rows, their levels, the loop, and guards around it.

    `_adopt` takes the model and the inner optimizer; then `_set_up`, or `_join` where workers come
    and go, makes the rest.
    """

    membership: Membership | None = None
    """Who is there, with `fault_tolerance`."""

    def _join(
        self, settings: Settings, rows: tuple[Row, ...], engine: Engine, limit: timedelta
    ) -> None:
        """Joins the workers that are there, and goes on from their next mean."""
        module, _ = unwrapped(self.model)
        alike = likeness(settings, self.inner, module, rows, engine)
        self.membership = Membership(engine, alike, settings.not_finite)
        placement = managed_placement(self.membership)
        levels = partial(
            ManagedLevels, rows, module, placement, settings, self.membership, limit, self.inner
        )
        self._set_up(settings, placement, None, rows, watched=False, make_levels=levels)
        models = self._models
        assert isinstance(models, ManagedLevels)
        models.tell(self._reports)
        Newcomers(self.inner, module, models, self.membership, self._loop, self._reports).join()

    def _adopt(self, inner: Optimizer, model: nn.Module, processes: int) -> tuple[Row, ...]:
        check_inner(inner, model)
        self._wrap(inner)
        self.model = model
        self._module, self._ddp = unwrapped(model)
        check_wrappers(model, wrapped_in_ddp=self._ddp is not None)
        self._fsdp = Fsdp(self._module)
        self._fsdp.reshard()
        rows = rows_of(self._module, inner, row_multiple(processes))
        check_backends(rows)
        return rows

    def _set_up(
        self,
        settings: Settings,
        placement: Placement,
        presence: Presence | None,
        rows: tuple[Row, ...],
        watched: bool,
        make_levels: Callable[[Ledger], ModelLevels] | None = None,
    ) -> None:
        self.ledger = ledger = Ledger.of(settings.levels)
        self._settings = settings
        self._placement = placement
        self._rows = rows
        self._untrained = Untrained(self.inner)
        self.agreement = agreement = Agreement(placement, rows)
        self._together = together = Together(presence, rows, placement.grid, self.inner)
        goes_on, says = settings.not_finite == "leave_out", together.says_not_finite
        self._left_out = partial(go_on_from_mean, together, self.inner, goes_on)
        mend = partial(mend_buffers, self._module, placement)
        left_out = partial(self._left_out, mend)
        says_not_finite = (says, together.refuse_not_finite, left_out)
        self._models = (
            ModelLevels(rows, placement, agreement, settings, ledger, *says_not_finite)
            if make_levels is None
            else make_levels(ledger)
        )
        world = Metered(placement.world, ledger.levels[-1])
        device, needs_rate = rows[0].values.device, self._models.needs_learning_rate
        everyone = Metered(placement.everyone, ledger.levels[-1])
        self._reports = reports = Reports(
            settings.schedules, everyone, device, ledger, self.inner, needs_rate, agreement.alone
        )
        flags = reports.flags if reports.signals.flagged else None
        leave_out = partial(leave_out_step, together, goes_on, mend)
        self._gradients = gradients = GradientAveraging(
            rows,
            placement,
            settings,
            ledger,
            self._module,
            agreement,
            self._ddp,
            watched,
            flags,
            together.named,
            says,
            leave_out,
        )
        members = self.membership
        self._loop = Loop(
            settings.schedules,
            self._models,
            gradients,
            Position.start(settings.levels),
            lambda steps: reports.signals.progress(steps if members is None else members.step),
            reports.learning_rate,
            (lambda: reports.exchange(gradients.take_carried())) if members is None else _nothing,
            InnerStates([self.inner], settings.inner_state, world),
        )
        self._finished_at = -1
        self._loaded = False
        self._compared = False  # with the other ranks, before the next step
        self._pass()
        self._guards = Guards(self.inner, self._module, rows, self._models, placement)
        reports.learning_rate()  # Refuses one that is None and needed, before anything is trained.

    def _pass(self) -> None:
        """Announces the next step to the other ranks."""
        self._together.lockstep = self._gradients.lockstep > 0
        self._together.passes(self.steps + 1)

    @property
    def steps(self) -> int:
        """Local steps taken, with those that a `GradScaler` has skipped."""
        return self._loop.steps

    def metrics(self) -> dict[str, float]:
        """Numbers of this rank for any logger: `logger.log(optimizer.metrics())`.

        A flat dict of ints and floats. It starts no collective and waits for no device, so one rank
        alone may ask, after any step.

            steps                     local steps taken
            local_steps_level_1, ...  H of the round at hand: local steps at level 1, the innermost;
                                      outside it, rounds of the level inside
            syncs_level_1, ...        how often each level has averaged models or gradients
            sent_bytes                payload that a member has handed over, of all levels;
                                      sent_bytes_level_1, ... by level
            arrived_bytes, ...        bytes that have arrived at a member (modelled)
            waited_seconds, ...       seconds that this rank has waited in collectives
            collectives, ...          collectives started
            learning_rate             of the first parameter group; learning_rate_group_2, ... of
                                      the others

        A rate that lies on a GPU is left out. How far workers have drifted apart is not in it: that
        takes a collective, as it is known only once all models have met.
        """
        return metrics_of(self._loop, self.ledger, self.inner)

    @property
    def at_sync(self) -> bool:
        """Whether the last step ended in a sync of all levels; before any step, yes.

        It follows from the schedules, and is the same on all ranks.
        """
        return self._loop.position.averaged == self._settings.levels

    @property
    def blocks(self) -> str:
        """The topology, as states name it."""
        return self._settings.described()["topology"]

    def __repr__(self) -> str:
        lengths = self._loop.position.lengths
        return (
            f"LocalSGD (H = {lengths[0] if len(lengths) == 1 else lengths}, topology "
            f"{self._settings.topology}, {plural(self.steps, 'step')}) of {self.inner!r}"
        )

    @property
    def worker(self) -> int:
        """The number of this rank's worker, from 0."""
        return self._placement.rank

    @property
    def workers(self) -> int:
        """K, the number of workers."""
        return self._placement.world.members

    @property
    def accumulating(self) -> bool:
        """Whether gradients stand that no step has used: they wait for further micro-batches."""
        return self._guards.gradients.waiting

    @contextmanager
    def _named(self) -> Generator[None]:
        """A context for a call of the user's, in which the loss of a rank becomes `PeerLost`."""
        try:
            with self._together.named():
                yield
        except BaseException:
            self._guards.failed()
            raise

    def meet(self, call: str, detail: str = "") -> list[str]:
        """Waits until all ranks are in this call, and returns the details that they give, by rank.

        Raises:
            UserError: on all ranks, if some are in another call.
        """
        self._guards.part.check_not_shown(call, "would take the average for this worker's own")
        with self._named():
            found = self._together.meet(f"{call}()", self.steps, [detail])
        self._pass()
        return [given for (given,) in found]

    @contextmanager
    def apart(self) -> Generator[dist.ProcessGroup | None]:
        """A gloo group that no sync uses, for all ranks at once; `None` if there is one worker."""
        presence = self._together.presence
        with self._named():
            yield None if presence is None else presence.apart()
