"""Numbers for MLflow."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, final

from localsgd.logs.logger import Numbers
from localsgd.logs.tracked import Tracked


@final
class MLflow(Tracked):
    """Logs to MLflow: where MLFLOW_TRACKING_URI says, or to `mlflow.db` in the current folder.

    The experiment is `localsgd` unless MLFLOW_EXPERIMENT_NAME names another.
    """

    name = "mlflow"

    def open(self, identity: str | None, settings: Mapping[str, Any]) -> str:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        self._status = "KILLED"
        if identity is not None:
            self._client.update_run(identity, status="RUNNING")
            self._run_id = identity
            return identity
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "localsgd")
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
        run = self._client.create_run(number, run_name=self.path.resolve().name)
        self._run_id = run.info.run_id
        params = [Param(name, str(value)) for name, value in settings.items()]
        self._client.log_batch(self._run_id, params=params)
        return self._run_id

    def tell(self, step: int, numbers: Numbers) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, float(value), now, step) for name, value in numbers.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def finished(self, summary: dict[str, Any]) -> None:
        self._status = "FINISHED"
        super().finished(summary)

    def end(self) -> None:
        self._client.set_terminated(self._run_id, status=self._status)
