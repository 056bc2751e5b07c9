"""Where workers come and go: what `LocalSGD` asks of its settings, and gives one that joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from localsgd.averaging.buffers import put_buffers
from localsgd.averaging.derived import renew
from localsgd.averaging.outer import as_outer
from localsgd.basics.files import as_saved
from localsgd.errors import UserError
from localsgd.loop import Loop
from localsgd.optimizer.consistency import digest_of_text
from localsgd.optimizer.managed import ManagedLevels
from localsgd.optimizer.membership import ALIKE, Membership
from localsgd.optimizer.reports import Reports
from localsgd.optimizer.settings import OuterChoice, Settings
from localsgd.optimizer.start import settings_of_optimizer
from localsgd.rows.model_rows import Row
from localsgd.rows.parts import digest_of_tensors
from localsgd.rows.shards import is_sharded
from localsgd.wire.engine import Engine

WITH = "with fault_tolerance"


def managed_settings(
    settings: Settings, ranks: int, engine: Engine, outer: OuterChoice | Sequence[OuterChoice]
) -> Settings:
    """`settings` for workers that come and go; refuses what can't work with them."""
    if ranks > 1:
        raise UserError(
            f"{WITH} each worker is alone in torch.distributed, and here are {ranks} processes; "
            "start each without torchrun's process group, or leave fault_tolerance out"
        )
    if settings.average == "gradients":
        raise UserError(f'{WITH} models are averaged, also where H = 1; leave average="gradients"')
    if not settings.delay.none:
        raise UserError(
            f"{WITH} a mean can't be on its way while workers come and go; leave delay out"
        )
    if averaged := [key for key, rule in settings.inner_state.items() if rule.action == "average"]:
        raise UserError(
            f"{WITH} inner states are kept or reset; take the average of {averaged[0]} out of "
            "inner_state"
        )
    for reducer in settings.reducers:
        if not reducer.members_may_change:
            raise UserError(
                f"{reducer!r} has a memory that fits its members alone, and {WITH} they change; "
                'give another reducer, such as "ef-sign", or set members_may_change and regroup '
                "in one of your own"
            )
    [given] = outer if isinstance(outer, Sequence) and not isinstance(outer, str) else [outer]
    if given == "bmuf" and engine.workers is None:
        raise UserError(f'outer="bmuf" needs K for its momentum; {WITH} give Managed(workers=K)')
    return replace(settings, outers=(as_outer(given, engine.workers or 1),), exact=0)


def likeness(
    settings: Settings, inner: Optimizer, model: nn.Module, rows: Sequence[Row], engine: Engine
) -> str:
    """A digest of what all workers must share, as they are made.

    Raises:
        UserError: the model is sharded.
    """
    if any(is_sharded(parameter) for row in rows for parameter in row.parameters):
        raise UserError(f"{WITH} each worker holds the whole model; give one that is not sharded")
    frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
    text = [
        *map(str, settings.described().items()),
        settings_of_optimizer(inner, without=("lr", "initial_lr")),
        *(row.layout.fingerprint().hex() for row in rows),
        digest_of_tensors(frozen).hex(),
        f"{engine.workers} {engine.momenta}",
    ]
    return digest_of_text("\n".join(text)).hex()


@dataclass(frozen=True)
class Newcomers:
    """Gives a worker that joins, or is left behind, what the others have.

    Args:
        inner: the inner optimizer.
        module: the model.
        levels, membership, loop, reports: of this worker.
    """

    inner: Optimizer
    module: nn.Module
    levels: ManagedLevels
    membership: Membership
    loop: Loop[Any]
    reports: Reports

    def join(self) -> None:
        """Joins those who are there, as one that is new itself."""
        self.membership.engine.keep(self.save, self.load)
        self.levels.sync()
        self.loop.position.close()
        self.loop.open()

    def save(self) -> dict[str, Any]:
        """Nobody writes here until the newcomer has it, as all wait for it in the sync."""
        copies = self.membership.engine.momenta == "copy"
        return {
            "alike": self.membership.alike,
            "loop": self.loop.state(),
            "levels": self.levels.shared(),
            "inner": self.inner.state_dict() if copies else None,
            "buffers": dict(self.module.named_buffers()),
            "membership": self.membership.state(),
            "reports": self.reports.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Takes over what `save` gave, if this worker is like the one that gave it."""
        if state.get("alike") != self.membership.alike:
            raise UserError(
                "this worker has another model or other settings than those with which the run "
                f"goes on; {ALIKE}"
            )
        with as_saved("what another worker has sent", ALIKE):
            self._take(state)

    @torch.no_grad()
    def _take(self, state: dict[str, Any]) -> None:
        self.loop.load(state["loop"])
        self.levels.load_shared(state["levels"])
        if state["inner"] is None:
            self.inner.state.clear()
        else:
            self.inner.load_state_dict(state["inner"])
        put_buffers(self.module, state["buffers"])
        renew(self.module)
        self.membership.load(state["membership"])
        self.membership.holds = self.levels.holds_anchor
        self.reports.load(state["reports"])
