"""Numbers for Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, final

from localsgd.basics.files import check_no_link
from localsgd.logs.logger import Numbers
from localsgd.logs.tracked import Tracked


@final
class WeightsAndBiases(Tracked):
    """Logs to Weights & Biases, in the project `localsgd` unless WANDB_PROJECT names another.

    WANDB_MODE=offline writes into the run's folder alone. All other variables of wandb hold too.
    """

    name = "wandb"

    def open(self, identity: str | None, settings: Mapping[str, Any]) -> str:
        import wandb

        check_no_link(self.path / "wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "localsgd"),
            name=self.path.resolve().name,
            id=identity,
            resume="allow" if identity else None,
            dir=str(self.path),
            config=dict(settings),
            reinit="create_new",  # a sweep has one run after the other in a process
        )
        return self._run.id

    def tell(self, step: int, numbers: Numbers) -> None:
        self._run.log(numbers, step=step)

    def end(self) -> None:
        self._run.finish()
