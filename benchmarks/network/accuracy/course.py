"""The order of it all: seeds outermost, so that an interrupted run has whole pairs; what the store
has is not done again.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.progress import Progress

from benchmarks.network import rates
from benchmarks.network.accuracy import trainee
from benchmarks.network.accuracy.arms import ARMS, BOUND, DDP, PACE
from benchmarks.network.accuracy.laps import SECONDS, Track
from benchmarks.network.accuracy.rate import Point, search
from benchmarks.network.accuracy.setting import Setting
from benchmarks.network.accuracy.store import Record, Store
from benchmarks.network.crew import Crew
from benchmarks.network.laboratory import Laboratory
from benchmarks.timing import ratios


class Course:
    """All measurements on one laboratory.

    Args:
        made: its links are shaped as each measurement needs it.
        crew: on its nodes.
        setting: of all runs.
        store: what is finished.
        progress: counts epochs.
    """

    def __init__(
        self, made: Laboratory, crew: Crew, setting: Setting, store: Store, progress: Progress
    ) -> None:
        self._made = made
        self._crew = crew
        self._setting = setting
        self._store = store
        self._progress = progress
        self._task = progress.add_task("starting", total=None)

    def rate_for(self, share: float) -> int:
        """The rate at which DDP has that share of the speed without communication."""
        found = self._store.find(kind="rate", share=share)
        if found is None:
            track = self._track(PACE, f"share {share:g}")
            points = search(share, lambda rate: self._share_at(track, rate))
            found = self._store.add(
                {
                    "kind": "rate",
                    "share": share,
                    "rate": points[-1].rate,
                    "points": [asdict(point) for point in points],
                    **_moment(),
                }
            )
            self._say(f"share {share:g} at {rates.named(found['rate'])}", points)
        return found["rate"]

    def _share_at(self, track: Track, rate: int) -> float:
        self._made.shape(rate)
        laps = track.laps(turns=1)
        return ratios(laps[BOUND], laps[DDP]).median

    def _track(self, arms: Sequence[str], where: str) -> Track:
        def tick(arm: str) -> None:
            self._show(f"{where}, laps: {ARMS[arm].named(self._setting)}")

        return Track(self._crew, arms, self._setting, tick)

    def train(self, rate: int, seeds: Sequence[int], arms: Sequence[str]) -> None:
        """The arms, seed by seed, each seed after a lap of DDP and of no communication."""
        jobs = [(seed, arm) for seed in seeds for arm in arms]
        kept = [self._kept(rate, seed, arm) for seed, arm in jobs]
        epochs = self._setting.epochs
        self._progress.update(self._task, total=epochs * len(jobs), completed=epochs * sum(kept))
        for (seed, arm), done in zip(jobs, kept, strict=True):
            if not done:
                self.pace(rate, seed, PACE, turns=1)
                record = self._train(rate, seed, arm)
                self._store.add(record)
                seconds, right = sum(record["seconds"]), record["right_last"]
                judged = self._setting.judged_last
                self._say(f"seed {seed}, {arm}: {seconds:.1f} s, {100 * right / judged:.2f} %")

    def _kept(self, rate: int, seed: int, arm: str) -> bool:
        return self._store.find(kind="run", rate=rate, seed=seed, arm=arm) is not None

    def pace(self, rate: int, seed: int, arms: Sequence[str], turns: int) -> None:
        """Laps of `arms`, once for each rate and seed."""
        wanted = {"kind": "laps", "rate": rate, "seed": seed, "arms": list(arms)}
        if self._store.find(**wanted) is None:
            moment = _moment()
            self._made.shape(rate)
            laps = self._track(arms, rates.named(rate)).laps(turns)
            rounded = {arm: [round(one, 5) for one in own] for arm, own in laps.items()}
            self._store.add({**wanted, "step_seconds": rounded, **moment})
            told = (f"{arm} {statistics.median(own):.3f}" for arm, own in laps.items())
            self._say(f"{rates.named(rate)}, seconds a step: {', '.join(told)}")

    def _train(self, rate: int, seed: int, arm: str) -> Record:
        setting, call = self._setting, self._crew.call
        moment, found = _moment(), {"seconds": [], "cpu_seconds": [], "node_bytes": [], "right": []}
        self._made.shape(rate)
        call(trainee.leave)
        call(trainee.begin, arm, setting, seed, seconds=SECONDS)
        steps = setting.judged_every * setting.steps_per_epoch
        for done in range(steps, setting.steps + 1, steps):
            self._show(f"{rates.named(rate)}, seed {seed}: {ARMS[arm].named(setting)}")
            last = done == setting.steps
            before = self._made.counters()
            took = call(trainee.advance, arm, steps, last, seconds=SECONDS)
            crossed = self._made.counters() - before
            found["seconds"].append(round(max(wall for wall, _ in took), 4))
            found["cpu_seconds"].append(round(sum(busy for _, busy in took), 2))
            found["node_bytes"].append(max(node.sent for node in crossed.nodes))
            found["right"].append(self._right(arm, 0, setting.judged))
            self._progress.advance(self._task, setting.judged_every)
        rest = self._right(arm, setting.judged, setting.judged_last)
        right = {"right_last": found["right"][-1] + rest}
        return {"kind": "run", "rate": rate, "seed": seed, "arm": arm, **found, **right, **moment}

    def _right(self, arm: str, first: int, end: int) -> int:
        return sum(self._crew.call(trainee.judge, arm, first, end, seconds=SECONDS))

    def _show(self, what: str) -> None:
        self._progress.update(self._task, description=what)

    def _say(self, what: str, points: Sequence[Point] = ()) -> None:
        on_the_way = ", ".join(f"{rates.named(one.rate)}: {one.share:.3f}" for one in points)
        self._progress.console.print(what + (f" ({on_the_way})" if points else ""))


def _moment() -> dict[str, Any]:
    """When something begins, and how busy the machine is then."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"when": when, "load": round(os.getloadavg()[0], 2)}
