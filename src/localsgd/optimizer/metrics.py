"""What a user's own loop can log, as flat numbers."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from localsgd.loop import Loop
from localsgd.optimizer.same_settings import rates_of
from localsgd.wire.metered import Ledger, by_level, traffic


def metrics_of(loop: Loop[Any], ledger: Ledger, inner: Optimizer) -> dict[str, float]:
    """The numbers that `LocalSGD.metrics` documents."""
    return {
        "steps": loop.steps,
        **by_level("local_steps", loop.position.lengths),
        **by_level("syncs", loop.syncs),
        **traffic(ledger.state()),
        **_rates(inner),
    }


def _rates(inner: Optimizer) -> dict[str, float]:
    """γ of each parameter group; without those on a device, which would have to be waited for."""
    return {
        "learning_rate" if number == 1 else f"learning_rate_group_{number}": rate
        for number, rate in enumerate(rates_of(inner), start=1)
        if rate is not None
    }
