"""`LocalSGD`: the core loop behind a `torch.optim.Optimizer`, for loops of one's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from localsgd.averaging.delay import NO_DELAY, Delay
from localsgd.averaging.inner_state import InnerStates
from localsgd.averaging.outer import Outer
from localsgd.averaging.placement import Placement, placement_of, row_multiple
from localsgd.averaging.topology import Topology
from localsgd.errors import UserError
from localsgd.optimizer import amp
from localsgd.optimizer.averaged_model import average_buffers, averaged
from localsgd.optimizer.ddp import unwrapped
from localsgd.optimizer.gradient_averaging import GradientAveraging
from localsgd.optimizer.guards import Guards
from localsgd.optimizer.inner_optimizer import check_inner, learning_rate_of, makes_state
from localsgd.optimizer.join import refuse_join
from localsgd.optimizer.model_levels import ModelLevels
from localsgd.optimizer.not_finite import clear_not_finite, leave_out_step
from localsgd.optimizer.peer_errors import others_named_lost
from localsgd.optimizer.saved import check_saved, fingerprint
from localsgd.optimizer.settings import (
    AverageWhat,
    LocalSteps,
    NotFinite,
    Settings,
    patience,
    settings_of,
)
from localsgd.optimizer.start import Start, check_configuration, check_or_share_start
from localsgd.optimizer.together import Together
from localsgd.optimizer.untrained import Untrained
from localsgd.optimizer.wrapping import Wrapping
from localsgd.optimizer.written import written_forward
from localsgd.reduce import Reducer
from localsgd.rows.model_rows import Row, rows_of
from localsgd.schedule.observations import Observations
from localsgd.schedule.rounds import Position
from localsgd.schedule.signals import Signals
from localsgd.wire import Ledger
from localsgd.wire.metered import Entry, Metered
from localsgd.wire.presence import Event, Presence


class LocalSGD(Wrapping):
    """An optimizer whose workers, one in each process, average their models only now and then.

        w_k <- w_k - γ g_k               at each step, by the inner optimizer of every worker k
        w_k <- 1/K sum_j w_j             after H steps (Lin et al. 2020, Algorithms 1, 2 and 5)

    Everything of an `Optimizer` works: learning-rate schedulers, closures, hooks, `state_dict` at
    any step, `torch.amp.GradScaler`, deep copies (of model and optimizer together). Without
    `torch.distributed` there is one worker, and this is the inner optimizer.

    Example:
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
            for each level; one flat group where not given.
        average: `"models"` averages models after the step (the paper); `"gradients"` averages
            gradients before it at levels that have averaged after every step so far, so that
            momenta are shared; `"auto"` does the second where it can.
        reducer: how updates become their mean, one for each level; `None` is the exact mean.
        outer: what happens to the mean update, one for each level; `None` is plain averaging.
        delay: of the outermost level's syncs: means that are applied later, fragments of the
            model that synchronise in turns.
        inner_state: what becomes of the inner optimizer's state where models are averaged at the
            outermost
            level, by key: keep (where nothing is said), average or reset, with a period, such as
            `"exp_avg=average,exp_avg_sq=average:4"` or `"all=reset"`.
        start: `"check"` that all ranks start from the same weights, or `"broadcast"` rank 0's.
        not_finite: what becomes of a sync in which some workers' weights have NaN or infinity. They
            are left out of an exact mean in any case; then `"error"` raises on all ranks, and
            `"leave_out"` goes on from the mean of the others, who go on with it. Where gradients
            are averaged the step is left out on all ranks. Nothing is asked of a GPU.
        timeout: of a collective; must outlast the longest time by which a rank may be behind, and
            so the slowest round. A `timedelta`, or seconds.

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
        reducer: Sequence[Reducer | None] | None = None,
        outer: Sequence[Outer | None] | None = None,
        delay: Delay = NO_DELAY,
        inner_state: str = "",
        start: Start = "check",
        not_finite: NotFinite = "error",
        timeout: timedelta | float = timedelta(hours=2),
    ) -> None:
        limit = patience(timeout)
        processes = dist.get_world_size() if dist.is_initialized() else 1
        settings = settings_of(
            processes,
            local_steps,
            topology,
            average,
            reducer,
            outer,
            delay,
            inner_state,
            not_finite,
        )
        rows = self._adopt(inner, model, processes)
        presence = Presence.of_processes(limit)
        with others_named_lost(presence):
            if presence is not None:
                presence.open(Event("LocalSGD()", 0, by_hand=True))
            check_configuration({**settings.described(), "start": start}, inner, rows)
            # A state may be saved by one rank alone while a mean is on its way.
            late = settings.delay.syncs > 0 and rows[0].values.device.type == "cpu"
            placement = placement_of(settings.topology, limit, presence, ahead=late)
            check_or_share_start(start, unwrapped(model)[0], rows, placement)
        self._set_up(settings, placement, presence, rows, watched=True)
        self._open()

    def _adopt(self, inner: Optimizer, model: nn.Module, processes: int) -> tuple[Row, ...]:
        if not isinstance(inner, Optimizer) or not isinstance(model, nn.Module):
            raise UserError(
                f"LocalSGD takes an optimizer and its model, not {type(inner).__name__} and "
                f"{type(model).__name__}"
            )
        if isinstance(inner, LocalSGD):
            raise UserError("the inner optimizer is a LocalSGD already; give the one inside it")
        check_inner(inner)
        self._wrap(inner)
        self.model = model
        return rows_of(unwrapped(model)[0], inner, row_multiple(processes))

    def _set_up(
        self,
        settings: Settings,
        placement: Placement,
        presence: Presence | None,
        rows: tuple[Row, ...],
        watched: bool,
    ) -> None:
        self.ledger = Ledger.of(settings.levels)
        self.steps = 0
        self._settings = settings
        self._placement = placement
        self._rows = rows
        self._untrained = Untrained(self.inner)
        self._module, ddp = unwrapped(self.model)
        self._together = Together(presence, self._module, rows)
        self._models = ModelLevels(
            rows,
            placement,
            settings,
            self.ledger,
            self._together.says_not_finite,
            self._together.refuse_not_finite,
        )
        world = Metered(placement.world, self.ledger.levels[-1])
        self._signals = Signals(settings.schedules, world, rows[0].values.device)
        self._gradients = GradientAveraging(
            rows,
            placement,
            settings,
            self.ledger,
            ddp,
            watched,
            flags=self._flags if self._signals.flagged else None,
            named=self._together.named,
            says=self._together.says_not_finite,
        )
        self._inner_states = InnerStates([self.inner], settings.inner_state, world)
        self._model_syncs = 0
        self._position = Position.start(settings.levels)
        self._finished_at = -1
        self._shows_average = False
        self._observations = Observations(1, rows[0].values.device)
        self._silent = False  # at the last sync, about losses
        self._loaded = False
        self._compared = False  # with the other ranks, before the next step
        self._together.passes(1)
        self._guards = Guards(self.inner, self._module, rows, self._models, placement)
        self._learning_rate()  # Refuses one that is None and needed, before anything is trained.

    def __repr__(self) -> str:
        lengths = self._position.lengths
        return (
            f"LocalSGD (H = {lengths[0] if len(lengths) == 1 else lengths}, topology "
            f"{self._settings.topology}, {self.steps} steps) of {self.inner!r}"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds tensors that don't train; the synchronised ones are fixed at the start."""
        given = param_group["params"]
        given = [given] if isinstance(given, Tensor) else list(given)
        tensors = [item[1] if isinstance(item, tuple) else item for item in given]  # named or not
        if any(tensor.requires_grad for tensor in tensors):
            raise UserError(
                "the tensors that LocalSGD synchronises are fixed when it is made, and this group "
                "has others; add the group to the inner optimizer before, or make a new LocalSGD"
            )
        self.inner.add_param_group({**param_group, "params": given})
        self._untrained = Untrained(self.inner)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)
        self._gradients.reopen()  # Averaged ones may have been dropped without a step.

    # The step.

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One local step, then the sync that is due, if any.

        A step that a `GradScaler` skips counts like any other.

        Args:
            closure: evaluates the model anew. While gradients are averaged, the loss that it gives
                to the inner optimizer, and that is returned, is the mean over the workers too.

        Raises:
            PeerLost: another rank has ended, or not answered within `timeout`.
        """
        self._check_own("step", "would train the average")
        if closure is None and makes_state(self.inner):
            with self._guards.inner.own():
                return self.inner.step()
        with self._together.named():
            return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        self._guards.begin_step()
        if not self._compared:
            self._begin()
        self._begin_rounds()
        with self._guards.inner.own():
            if closure is not None:
                loss = self.inner.step(lambda: self._evaluate(closure))
            else:
                loss = None
                if not self._found_inf():
                    loss = self._guards.inner.step()
        self._guards.stepped(first=self.steps == 0)
        self._gradients.end_step()
        self.steps += 1
        self._position.left[0] -= 1
        if self._position.left[0] == 0:
            self._sync()
        self._guards.end_step(self._all_averaged)
        self._together.passes(self.steps + 1)
        return loss

    def _begin(self) -> None:
        """Before the first step here: do all ranks go on from the same place?"""
        free = self._loaded or any(True for _ in written_forward(self._module))
        self._together.check_start(self.steps, repr(self._position), loaded=free)
        self._compared = True
        if self.steps == 0:
            self._models.catch_up()  # Weights may have been loaded since this was made.

    def average_gradients(self) -> None:
        """Averages gradients now where `step()` would do so first, and only once.

        For clipping by the norm of the averaged gradients, without DDP (which has averaged them by
        the end of the backward pass): call this, clip, then step. In a local phase nothing happens.
        Without a step, `zero_grad()` of this optimizer (not the model's) begins anew.
        """
        with self._together.named():
            self._gradients.average_early()

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
        if self._gradients.not_finite(self._gradients.average()):
            leave_out_step(self._together, goes_on=False)
        self._gradients.reopen()  # The closure may be called again in this step.
        if loss is not None and "loss" in self._signals.sees:
            self.report_loss(loss)
        return self._gradients.mean_loss(loss)

    def _found_inf(self) -> bool:
        """Prepares the gradients; says whether a scaler skips the step here."""
        scale: Tensor | None = getattr(self, "grad_scale", None)
        found: Tensor | None = getattr(self, "found_inf", None)
        if scale is not None:
            amp.unscale(self.inner, scale)
        skip = found is not None and bool(found)
        averaged_before = self._gradients.averaged
        marks = self._gradients.average(mark=skip)
        if found is None:
            goes_on = self._settings.not_finite == "leave_out"
            return self._gradients.not_finite(marks) and leave_out_step(self._together, goes_on)
        if skip:
            return True
        if averaged_before:
            return not self._gradients.all_finite(self.inner)
        return bool(marks) and bool(torch.stack([mark.float() for mark in marks]).max() > 0)

    def _learning_rate(self) -> float:
        needed = self._models.needs_learning_rate or "learning_rate" in self._signals.sees
        return learning_rate_of(self.inner, needed)

    @property
    def _all_averaged(self) -> bool:
        """Whether all workers hold the same model, as far as this one knows."""
        return self._innermost_due() is None and not self._models.may_differ

    def _check_own(self, call: str, why: str) -> None:
        if self._shows_average:
            raise UserError(f"{call}() inside averaged_model() {why}; leave the context before")
        self._guards.part.check_not_shown(call)

    # Rounds.

    def _open(self) -> None:
        opened = self._position.open(
            self._settings.schedules, lambda: self._signals.progress(self.steps)
        )
        self._gradients.set_lockstep(opened.lockstep)

    def _begin_rounds(self) -> None:
        if not self._models.needs_learning_rate:
            return
        lengths = zip(self._position.left, self._position.lengths, strict=True)
        for level, (left, length) in enumerate(lengths):
            if left != length:
                break  # A round outside it began with an earlier step.
            self._models.begin_round(level, self._learning_rate())

    def _sync(self) -> None:
        depth, lockstep = self._position.depth, self._gradients.lockstep
        self._together.syncs(self.steps, depth if self._settings.levels > 1 else None)
        self._untrained.check()
        if depth == self._settings.levels:
            self._guards.before_world()
        if lockstep < depth:
            self._models.average(depth, first=lockstep, meanwhile=partial(self._move_on, depth))
            self._look_for_not_finite(self._models.take_left_out())
        else:
            self._models.check_some_in_place()
            self._move_on(depth)
        if self._settings.inner_state and lockstep < depth == self._settings.levels:
            self._model_syncs += 1
            self._inner_states.average(self._model_syncs)

    def _look_for_not_finite(self, left_out: bool) -> None:
        if left_out:
            own = self._together.tell_of_not_finite(self._settings.not_finite == "leave_out")
            if own:
                clear_not_finite(self.inner)

    def _move_on(self, depth: int) -> None:
        """The next rounds begin: done while models are on the wire."""
        self._position.close()
        if depth == self._settings.levels and self._signals.needed:
            self._signals.exchange(self._own_signals(), self._gradients.take_carried())
        self._open()

    def report_loss(self, loss: Tensor | float) -> None:
        """Tells schedules that judge by the training loss what this worker's batch had.

        Once for each step, before or after it; a closure's loss is taken without.
        """
        self._observations.add(0, loss)

    def _flags(self) -> list[float]:
        return self._signals.flags(self._learning_rate())

    def _own_signals(self) -> Tensor:
        if self._signals.flagged:
            return torch.tensor([self._flags()])
        was_silent, self._silent = self._silent, self._observations.silent
        if "loss" in self._signals.sees and was_silent and self._silent:
            raise UserError(
                "local_steps judges by the training loss, and nobody has told it; call "
                "optimizer.report_loss(loss) in every step"
            )
        return self._observations.signals(self._learning_rate(), self.ledger.seconds)

    def _innermost_due(self) -> int | None:
        """The innermost level that has steps of its own to average; all outside it have too."""
        under_way = zip(self._position.left, self._position.lengths, strict=True)
        return next((i for i, (left, length) in enumerate(under_way) if left != length), None)

    def finish(self) -> None:
        """The last sync: all workers hold the averaged model afterwards, and its buffers.

        Collective. Call it wherever the run ends; again is harmless. A run that goes on begins new
        rounds.
        """
        self._check_own("finish", "would be undone at its end")
        self._guards.inner.check_finish(self.steps)
        if self._finished_at == self.steps:
            return
        with self._together.named():
            self._finish()
            self._together.passes(self.steps + 1)

    def _finish(self) -> None:
        due = self._innermost_due()
        equal = due is None and not self._models.may_differ
        if self._together.differ("finish()", self.steps, equal):
            due = 0
        elif due is None and self._models.may_differ:
            due = self._settings.levels
        if due is not None:
            self._untrained.check()
            self._models.final_average(first=due)
            self._look_for_not_finite(self._models.take_left_out())
            self._position.left = [0] * self._settings.levels
            self._position.depth = 0
            self._open()
        average_buffers(self._module, self._placement.world)
        self._finished_at = self.steps
        self._guards.end_step(self._all_averaged)

    @contextmanager
    def averaged_model(self) -> Generator[nn.Module]:
        """The model holds the mean of all workers' inside, and its own bits again afterwards.

        Parameters are averaged over all workers, wherever they are in their rounds; batch-norm
        variances get the term between workers. Collective: all ranks must enter. For evaluation and
        for saving.
        """
        if self._shows_average:
            yield self.model
            return
        for row in self._rows:
            row.check_in_place()
        equal = self._all_averaged
        with ExitStack() as held, self._guards.part.showing():
            with self._together.named():
                differ = self._together.differ("averaged_model()", self.steps, equal) or not equal
                says = self._together.says_not_finite
                left_out = held.enter_context(
                    averaged(self._module, self._rows, self._placement.world, differ, says)
                )
                self._look_for_not_finite(left_out)
                self._together.passes(self.steps + 1)
            self._shows_average = True
            self._guards.seen()
            try:
                yield self.model
            finally:
                self._shows_average = False

    # State.

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._check_own("load_state_dict", "would be undone at its end")
        super().load_state_dict(state_dict)

    def _own_state(self) -> dict[str, Any]:
        return {
            "rank": self._placement.rank,
            "model": fingerprint(self._rows),
            "steps": self.steps,
            "finished_at": self._finished_at,
            "position": asdict(self._position),
            "lockstep": self._gradients.lockstep,
            "levels": self._models.state(),
            "signals": self._signals.state(),
            "model_syncs": self._model_syncs,
            "inner_state_keys": self._inner_states.state(),
            "told": [*map(float, self._observations.state(0)), self._observations.seconds],
            "ledger": [asdict(entry) for entry in self.ledger.levels],
            "made_with": self._settings.described(),
        }

    def _check_saved(self, own: dict[str, Any]) -> None:
        check_saved(own, self._own_state(), self._settings)

    def _load_own(self, own: dict[str, Any]) -> None:
        self.steps = own["steps"]
        self._finished_at = own["finished_at"]
        self._position = Position(**copy.deepcopy(own["position"]))
        # Where models were averaged, each worker has an inner state of its own.
        self._position.lockstep = min(self._position.lockstep, own["lockstep"])
        self._models.load(own["levels"])
        self._signals.load(own["signals"])
        self._model_syncs = own["model_syncs"]
        self._inner_states.load(own.get("inner_state_keys", ()))
        loss, losses, self._observations.seconds = own["told"]
        self._observations.load(0, (loss, int(losses)))
        self._observations.restart()
        for entry, saved in zip(self.ledger.levels, own["ledger"], strict=True):
            vars(entry).update(vars(Entry(**saved)))
        self._gradients.watch = None if self.steps else self._gradients.watch
        self._guards.loaded(self._all_averaged)
        self._gradients.set_lockstep(self._position.lockstep)
        self._compared, self._loaded = False, True
        self._together.passes(self.steps + 1)

    def __deepcopy__(self, memo: dict[int, Any]) -> LocalSGD:
        """Rows of its own: deep-copy model and optimizer together, `deepcopy((model, self))`."""
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        model = copy.deepcopy(self.model, memo)
        rows = new._adopt(copy.deepcopy(self.inner, memo), model, self._placement.world.members)
        presence = self._together.presence
        new._set_up(self._settings, self._placement, presence, rows, watched=not self.steps)
        new._load_own(self._own_state())
        return new

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("LocalSGD holds process groups and can't be pickled; save its state_dict()")
