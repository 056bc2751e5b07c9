from __future__ import annotations

import io
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from experiments.engine import Outcome, Place, carry_out, distinct, is_alone
from experiments.measured import StepTime
from experiments.scales import SCALES
from experiments.store import Store
from experiments.study import Job, Record, Workplace
from localsgd.basics.shards import share
from localsgd.errors import UserError
from tests.experiments.jobs import Square


def run(jobs: list[Job], folder: Path, processes: int = 1) -> Outcome:
    store = Store(SCALES["smoke"], folder / "out")
    console = Console(file=io.StringIO())
    return carry_out(jobs, store, Place(folder / "scratch"), processes, console)


def done(folder: Path) -> list[int]:
    return sorted(int(line) for line in (folder / "scratch" / "done").read_text().split())


@pytest.mark.parametrize("count", [1, 3, 16])
def test_shares_have_every_job_once(count: int) -> None:
    jobs: list[Job] = [Square(number) for number in range(10)]
    shares = [share(jobs, f"{index}/{count}") for index in range(1, count + 1)]
    together = [job for one in shares for job in one]
    assert sorted(job.number for job in together) == list(range(10))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "/", "1/2/3"])
def test_a_shard_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="write 1/3, 2/3 or 3/3"):
        share([], text)


def test_jobs_that_studies_share_are_one() -> None:
    jobs = [Square(2), Square(1), Square(2, note="again"), Square(3)]
    assert distinct(jobs) == [Square(2), Square(1), Square(3)]


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    assert run([Square(1), Square(2)], tmp_path).done == 2
    assert run([Square(1), Square(2), Square(3)], tmp_path).done == 1
    assert done(tmp_path) == [1, 2, 3]


def test_others_go_on_and_each_failure_is_told_once(tmp_path: Path) -> None:
    wrong = [Square(1, wrong="data"), Square(2, wrong="data"), Square(3, wrong="code")]
    outcome = run([*wrong, Square(4)], tmp_path)
    assert outcome.failed == {
        "1 squared": "no numbers here; count some",
        "3 squared": "ZeroDivisionError: by zero",
    }
    assert done(tmp_path) == [4]


def test_interrupted_it_keeps_what_is_finished(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run([Square(1), Square(2, wrong="stop"), Square(3)], tmp_path)
    assert run([Square(1), Square(2), Square(3)], tmp_path).done == 2
    assert done(tmp_path) == [1, 2, 3]


def test_where_there_is_no_terminal_a_line_tells_the_progress_at_most_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 50.0, 61.0, 119.0, 7200.0])
    clock = SimpleNamespace(monotonic=lambda: next(times), perf_counter=time.perf_counter)
    monkeypatch.setattr("experiments.engine.time", clock)
    out = io.StringIO()
    jobs = [Square(1), Square(2, wrong="data"), Square(3), Square(4)]
    carry_out(
        jobs, Store(SCALES["smoke"], tmp_path), Place(tmp_path), 1, Console(file=out, width=30)
    )
    assert out.getvalue() == (
        "2 of 4 ended after 1 min 1 s, the last: 2 squared\n"
        "4 of 4 ended after 2 h, the last: 4 squared\n"
    )


@pytest.mark.timeout(120)
def test_several_processes_do_the_same(tmp_path: Path) -> None:
    """The last job interrupts; what the others finish meanwhile is kept."""
    jobs: list[Job] = [Square(9, wrong="data"), *(Square(number) for number in range(4))]
    with pytest.raises(KeyboardInterrupt):
        run([*jobs, Square(4, wrong="stop")], tmp_path, processes=2)
    assert done(tmp_path) == list(range(4))
    store = Store(SCALES["smoke"], tmp_path / "out")
    assert [store.of(job) for job in jobs] == [
        None,
        *({"square": number**2, "seconds": 0.5} for number in range(4)),
    ]


@pytest.mark.usefixtures("quick_pools")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("first", [0, 1, 3])
def test_others_go_on_where_a_process_is_killed(tmp_path: Path, first: int) -> None:
    """Those that it took along are done again, wherever among them it stood."""
    jobs: list[Job] = [Square(number) for number in range(1, 4)]
    jobs.insert(first, Square(0, wrong="killed"))
    outcome = run(jobs, tmp_path, processes=2)
    assert list(outcome.failed) == ["0 squared"]
    assert "its process was killed" in outcome.failed["0 squared"]
    assert outcome.done == 3
    assert set(done(tmp_path)) == {1, 2, 3}


@dataclass(frozen=True)
class Timed(Square):
    """A measurement: how many others run beside it is its record."""

    alone = True

    @property
    def key(self) -> Mapping[str, Any]:
        return {**super().key, "kind": "timed"}

    def carry_out(self, place: Workplace) -> Record:
        begun = place.scratch / f"begun-{self.number}"
        place.scratch.mkdir(parents=True, exist_ok=True)
        begun.touch()
        time.sleep(0.3)
        beside = len(list(place.scratch.glob("begun-*")))
        begun.unlink()
        return {"beside": beside, "squares": len(done(place.scratch.parent)), "seconds": 0.3}


@pytest.mark.usefixtures("quick_pools")
def test_measurements_of_time_run_alone_and_last(tmp_path: Path) -> None:
    jobs: list[Job] = [Timed(1), Square(1), Timed(2), Square(2)]
    assert run(jobs, tmp_path, processes=3).done == 4
    store = Store(SCALES["smoke"], tmp_path / "out")
    found = [store.of(job) for job in (jobs[0], jobs[2])]
    assert [(one["beside"], one["squares"]) for one in found if one] == [(1, 2), (1, 2)]
    assert all(is_alone(job) for job in (StepTime("resnet8", "cifar10", 1, 1), Timed(1)))
    assert not is_alone(Square(1))
