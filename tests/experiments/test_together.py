"""Several commands at the same jobs: none is done twice, none in the folder of another."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments import engine, tuning
from experiments.arms import arm
from experiments.engine import Place, carry_out
from experiments.scales import SCALES
from experiments.store import Store
from experiments.study import Job, Record
from experiments.training import TrainJob
from localsgd.train.config.run import Run
from localsgd.train.engine import trunk

SMOKE = SCALES["smoke"]
SETTINGS: dict[str, Any] = {**SMOKE.ground, "method": "local", "local_steps": (2,)}
ONE = TrainJob(Run(**SETTINGS))


def test_a_second_command_waits_and_finds_what_the_first_has_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes upon the job after the first one's third step, and before its record is there."""
    opened, records = [], list[Record]()

    def command() -> None:
        place = Place(tmp_path / "work", records=Store(SMOKE, tmp_path / "out"))
        records.append(ONE.carry_out(place))

    second = threading.Thread(target=command)

    def stepped(self: trunk.Observers, assembly: Any) -> None:
        if assembly.workers.step == 3 and not second.is_alive():
            second.start()
            time.sleep(0.3)

    before = trunk.opened
    monkeypatch.setattr(trunk.Observers, "stepped", stepped)
    monkeypatch.setattr(trunk, "opened", lambda *arguments: opened.append(1) or before(*arguments))
    command()
    second.join()
    assert len(opened) == 1
    assert json.loads(json.dumps(records[0])) == records[1]
    (path,) = (tmp_path / "out").rglob("*.jsonl")
    assert path.read_text().count("\n") == 1
    assert not list((tmp_path / "work" / "runs").iterdir())


@pytest.mark.usefixtures("quick_pools")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_record_is_kept_once(processes: int, tmp_path: Path) -> None:
    jobs: list[Job] = [TrainJob(Run(**SETTINGS, seed=seed)) for seed in range(2)]
    store, console = Store(SMOKE, tmp_path / "out"), Console(file=io.StringIO())
    assert carry_out(jobs, store, Place(tmp_path / "work"), processes, console).done == 2
    (path,) = (tmp_path / "out").rglob("*.jsonl")
    assert path.read_text().count("\n") == 2
    assert all(store.of(job) for job in jobs)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_shares_of_what_follows_do_not_shift(count: int) -> None:
    """Whatever of a grid is done, the rest stays where it was."""
    points: list[Job] = [tuning.point(arm(SMOKE, "one"), factor) for factor in tuning.FACTORS]
    texts = [f"{index}/{count}" for index in range(1, count + 1)]
    whole = [engine.share_by_key(points, text) for text in texts]
    assert sorted(job.title for one in whole for job in one) == sorted(job.title for job in points)
    assert sum(map(len, whole)) == len(points)
    for left in range(len(points)):
        rest = [engine.share_by_key(points[left:], text) for text in texts]
        for mine, then in zip(whole, rest, strict=True):
            assert [job for job in mine if job in points[left:]] == then
