"""What a run has given: curves, traffic, models."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from localsgd.basics.files import check_regular, expanded
from localsgd.basics.units import plural
from localsgd.errors import UserError, unknown_name
from localsgd.train.config.parts import going_on
from localsgd.train.config.run import Run
from localsgd.train.data.metric import Metric, metric_of
from localsgd.train.engine import checkpoints
from localsgd.train.engine.run_folder import Folder
from localsgd.wire import Entry, Ledger

Weights = dict[str, Tensor]
"""A state dict, on the CPU."""


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a run that has ended.

    Args:
        settings: of the run, all of them.
        rows: the evaluations, oldest first: the lines of `metrics.jsonl`.
        summary: what is in `summary.json`.
        weights: the averaged model's state dict, on the CPU.
        model: the averaged model, in eval mode; None for a run that was loaded without a model.
        local_weights: a state dict for each worker that this process hosts, by worker; those of all
            K for a run that was loaded, which are read from its last checkpoint when they are asked
            for. After the last sync all workers hold the same parameters; buffers, such as the
            statistics of batch norm, are each worker's own.
        path: of its folder; None for a run without one.
    """

    settings: Run
    rows: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]
    weights: Weights
    model: nn.Module | None = None
    local_weights: Mapping[int, Weights] = field(default_factory=dict)
    path: Path | None = None

    @property
    def metric(self) -> Metric:
        """What models of this task are judged by."""
        return metric_of(self.summary)

    @property
    def score(self) -> float:
        """The averaged model's accuracy (0 to 1) on test data, or its perplexity."""
        return self.summary[self.metric.key]

    @property
    def diverged(self) -> bool:
        """Whether numbers have stopped being finite."""
        return bool(self.summary.get("diverged"))

    @property
    def ledger(self) -> Ledger:
        """Calls, bytes and seconds waited by level, innermost first."""
        return Ledger([Entry(**entry) for entry in self.summary["ledger"]])

    def curve(self, name: str = "") -> tuple[list[float], list[float]]:
        """Epochs, and a value at each evaluation that has it.

        Args:
            name: a key of `rows`, such as `train_loss` or `seconds`; the task's metric if not
                given.
        """
        key = name or self.metric.key
        known = {key for row in self.rows for key, value in row.items() if _is_number(value)}
        if key not in known:
            raise unknown_name("curve", key, sorted(known) or ["none"])
        rows = [row for row in self.rows if key in row]
        return [row["epoch"] for row in rows], [row[key] for row in rows]

    def __repr__(self) -> str:
        metric = self.metric
        where = "" if self.path is None else f", {self.path}"
        return (
            f"Result({self.settings.method} on {self.settings.task}: test {metric.name} "
            f"{metric.words(self.score, 1)} after {plural(self.summary['steps'], 'step')}{where})"
        )


def load(path: Path | str, model: nn.Module | Callable[[], nn.Module] | None = None) -> Result:
    """The result of a run in a folder, however it was started.

    Reads data alone: no code that the folder names or holds is imported.

    Args:
        path: of the folder.
        model: a module, which is copied, or a function that makes one; the result's `model` is it
            with the averaged model's weights.

    Raises:
        UserError: no run's folder; the run has not ended; a file is damaged; the model is another.
    """
    folder = Folder.open(expanded(path))
    summary = folder.summary()
    if summary is None:
        raise UserError(f"{path} has not ended; go on with: {going_on(folder.run, Path(path))}")
    weights = weights_in(folder)
    filled = None if model is None else _filled(model, weights, folder)
    local = _FromCheckpoint(folder, summary["steps"], weights)
    return Result(folder.run, folder.metrics(), summary, weights, filled, local, folder.path)


class ByWorker(dict[int, Weights]):
    """Workers' own weights, by their numbers."""

    def __missing__(self, worker: int) -> Weights:
        raise _no_worker(worker, self)


def _no_worker(worker: Any, there: Iterable[int]) -> KeyError:
    return KeyError(f"there is no worker {worker} here; there are {', '.join(map(str, there))}")


@dataclass(frozen=True, eq=False)
class _FromCheckpoint(Mapping[int, Weights]):
    """All workers' own weights, each read when it is asked for."""

    folder: Folder
    step: int
    whole: Weights

    def __getitem__(self, worker: int) -> Weights:
        if worker not in self._workers:
            raise _no_worker(worker, self)
        found = checkpoints.checkpoints(self.folder.checkpoints)
        if not found or checkpoints.step_of(found[-1]) != self.step:
            raise UserError(
                f"{self.folder.path} has no checkpoint of the run's end, which has the workers' "
                "own weights; keep its checkpoints/, or local_weights of the train() that ends it"
            )
        return checkpoints.worker_weights(found[-1], worker, self.whole)

    def __iter__(self) -> Iterator[int]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def _workers(self) -> range:
        return range(self.folder.run.workers or 0)


def _filled(
    model: nn.Module | Callable[[], nn.Module], weights: Weights, folder: Folder
) -> nn.Module:
    made = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
    if folder.run.precision == "float64":
        made = made.double()
    try:
        made.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[:2][-1]  # behind a heading
        reason = textwrap.shorten(first, 200, placeholder=" ...")
        raise UserError(
            f"{folder.model} holds the weights of another model, {folder.run.model}: {reason}"
        ) from None
    return made.eval()


def weights_in(folder: Folder) -> Weights:
    """The averaged model's weights."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    check_regular(folder.model)
    try:
        return load_file(folder.model)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{folder.model} can't be read: {error}") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
