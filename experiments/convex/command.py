"""The commands of the convex study."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from experiments.convex.store import Store
from experiments.convex.study import COMMUNICATION, EPSILON, Bench
from localsgd.errors import UserError

RESULTS = Path(__file__).parents[1] / "results" / "convex"


@dataclass(frozen=True)
class Options:
    """The options of a command.

    Args:
        data: name of the data set in LIBSVM's format, such as w8a or a9a.
        seeds: how many seeds, from 0; those of the design if not given.
        data_dir: where it lies; otherwise LOCALSGD_DATA and ~/.cache/localsgd.
        out: folder for runs, figures and pages.
        thin: whether only every other power of two is run, of B, K and the maps' H.
        epsilon: the target is f* + epsilon.
        communication: gradients that a sync costs.
    """

    data: str = "w8a"
    seeds: int | None = None
    data_dir: Path | None = None
    out: Path = RESULTS
    thin: bool = False
    epsilon: float = EPSILON
    communication: float = COMMUNICATION

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise UserError(f"{self.seeds} seeds give no result; give 1 or more")
        if not 0 <= self.communication < math.inf:
            raise UserError(
                f"a sync can't cost {self.communication:g} gradients; give a number >= 0"
            )

    def bench(self) -> Bench:
        """The data set with its targets."""
        return Bench.load(self.data, self.data_dir, self.epsilon)

    def path(self, what: str, ending: str) -> Path:
        """A file of the results."""
        self.out.mkdir(parents=True, exist_ok=True)
        return self.out / f"{self.data}-{what}.{ending}"

    def store(self) -> Store:
        """All runs on the data set: figures and maps share what they have in common."""
        self.out.mkdir(parents=True, exist_ok=True)
        return Store(self.out / f"{self.data}.jsonl")


def command(run: Callable[[Options], None]) -> None:
    """Runs an experiment with options from the command line; a user's mistake ends with 2."""
    import matplotlib
    import tyro

    matplotlib.use("Agg")
    # A step is too small for threads to pay.
    torch.set_num_threads(1)
    try:
        run(tyro.cli(Options))
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
