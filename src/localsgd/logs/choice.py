"""Loggers by the names of `--log`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from localsgd.errors import UserError, unknown_name
from localsgd.logs.json_lines import JsonLines
from localsgd.logs.logger import Logger
from localsgd.logs.ml_flow import MLflow
from localsgd.logs.tensor_board import TensorBoard
from localsgd.logs.tracked import Tracked
from localsgd.logs.weights_and_biases import WeightsAndBiases

LOGGERS: dict[str, type[Logger]] = {
    "jsonl": JsonLines,
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
NEEDS = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
"""The package that a logger needs; it is installed by the extra of the same name."""


def names_of(text: str) -> list[str]:
    """The loggers in a text such as `tensorboard,jsonl`.

    Raises:
        UserError: a name is unknown, or its package is not installed.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in LOGGERS:
            raise unknown_name("logger", name, LOGGERS)
        if name in NEEDS and find_spec(NEEDS[name]) is None:
            raise UserError(
                f"--log {name} needs {NEEDS[name]}, which is not installed; "
                f"pip install 'localsgd[{name}]', or use --log jsonl"
            )
    return names


def services_of(text: str) -> list[str]:
    """The names in a text such as `wandb,jsonl` of services, which get numbers as a user's own."""
    names = [name.strip() for name in text.split(",")]
    return [name for name in names if issubclass(LOGGERS.get(name, Logger), Tracked)]


def loggers_of(text: str, path: Path) -> list[Logger]:
    """The loggers that `text` names, for the run in `path`."""
    return [LOGGERS[name](path) for name in names_of(text)]
