"""What was trained at one rate: times and accuracies of arms, paired over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from benchmarks.network.accuracy.arms import DDP, PACE, TRAINED
from benchmarks.network.accuracy.setting import Setting
from benchmarks.network.accuracy.store import Record, Store
from benchmarks.timing import Spread, ratios

WITHIN = 0.5
"""Points below DDP's accuracy at its end that still count as the same."""


@dataclass(frozen=True)
class Trained:
    """One run.

    Args:
        seconds: of training up to each accuracy.
        accuracy: along the way, %, on the images that are judged there.
        last: at the end, %, on all that are judged.
        node_bytes: a step, of the node that sent most.
        cpu_seconds: a step, of all processes.
    """

    seconds: tuple[float, ...]
    accuracy: tuple[float, ...]
    last: float
    node_bytes: float
    cpu_seconds: float

    @staticmethod
    def of(record: Record, setting: Setting) -> Trained:
        return Trained(
            tuple(accumulate(record["seconds"])),
            tuple(100 * right / setting.judged for right in record["right"]),
            100 * record["right_last"] / setting.judged_last,
            sum(record["node_bytes"]) / setting.steps,
            sum(record["cpu_seconds"]) / setting.steps,
        )

    def reached(self, accuracy: float) -> float | None:
        """Seconds until that accuracy was first measured; `None` if it never was."""
        timed = zip(self.seconds, self.accuracy, strict=True)
        return next((seconds for seconds, found in timed if found >= accuracy), None)


@dataclass(frozen=True)
class Outcome:
    """All runs at a rate.

    Args:
        rate: bits a second.
        runs: by arm, then by seed.
        share: of the speed without communication that DDP has, over laps in turns.
    """

    rate: int
    runs: dict[str, dict[int, Trained]]
    share: Spread

    def arms(self) -> list[str]:
        """Arms that have a run with a seed of DDP's, in the order of the table."""
        return [arm for arm in TRAINED if self.seeds(arm)]

    def seeds(self, arm: str) -> list[int]:
        return sorted(self.runs.get(arm, {}).keys() & self.runs.get(DDP, {}).keys())

    def pairs(self, arm: str) -> list[tuple[Trained, Trained]]:
        """The arm's run and DDP's, seed by seed."""
        return [(self.runs[arm][seed], self.runs[DDP][seed]) for seed in self.seeds(arm)]

    def times(self, arm: str) -> Spread:
        """The arm's time as a fraction of DDP's, for as many samples."""
        own, base = zip(*self.pairs(arm), strict=True)
        return ratios([one.seconds[-1] for one in own], [one.seconds[-1] for one in base])

    def points_below(self, arm: str) -> list[float]:
        """DDP's final accuracy minus the arm's, in points."""
        return [base.last - own.last for own, base in self.pairs(arm)]

    def times_to_accuracy(self, arm: str) -> list[float | None]:
        """The time to DDP's final accuracy minus `WITHIN`, as a fraction of DDP's; else `None`.

        Its resolution is that of the evaluations during the run.
        """
        found: list[float | None] = []
        for own, base in self.pairs(arm):
            target = base.accuracy[-1] - WITHIN
            seconds, least = own.reached(target), base.reached(target)
            found.append(None if seconds is None or least is None else seconds / least)
        return found


def outcomes(store: Store, setting: Setting) -> list[Outcome]:
    """An outcome for each rate at which DDP and another arm were trained from one seed."""
    records = store.all(kind="run")
    found = [
        Outcome(rate, _runs(records, rate, setting), _share(store, rate))
        for rate in dict.fromkeys(one["rate"] for one in records)
    ]
    return [one for one in found if one.arms()]


def _runs(records: Sequence[Record], rate: int, setting: Setting) -> dict[str, dict[int, Trained]]:
    runs: dict[str, dict[int, Trained]] = {}
    for one in records:
        if one["rate"] == rate:
            runs.setdefault(one["arm"], {})[one["seed"]] = Trained.of(one, setting)
    return runs


def _share(store: Store, rate: int) -> Spread:
    laps = [one["step_seconds"] for one in store.all(kind="laps", rate=rate, arms=list(PACE))]
    own, base = ([seconds for one in laps for seconds in one[arm]] for arm in PACE)
    return ratios(own, base)
