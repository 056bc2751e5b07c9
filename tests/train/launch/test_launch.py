from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from localsgd.train.launch.launch import Cause, Failure, first_cause

pytestmark = pytest.mark.timeout(120)


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def ready(folder: Path) -> bool:
    return len(list(folder.glob("ready*"))) == 2


def pids(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in sorted(folder.glob("pid*"))]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def launch(zygote, tmp_path) -> Callable:
    def launch(mode: str, meanwhile: Callable[[int], None] = lambda pid: None):
        return zygote.run(
            "launcher", [{}], mode, str(tmp_path), meanwhile=lambda pids, _: meanwhile(pids[0])
        )

    return launch


def test_fine(launch, tmp_path):
    outcome = launch("fine")
    assert outcome.statuses == [0]
    assert sorted(outcome.out[0].splitlines()) == ["rank 0 fine", "rank 1 fine"]
    assert outcome.err == [""]


def test_a_mistake_is_printed_once(launch):
    outcome = launch("mistake")
    assert outcome.statuses == [2]
    assert outcome.err == ["error: 5 workers can't be split into 2 processes\n"]


def test_a_killed_rank_ends_the_others_and_is_named(launch, tmp_path):
    outcome = launch("killed")
    assert outcome.statuses == [3]
    pid = int((tmp_path / "pid1").read_text())
    assert outcome.err == [f"rank 1 (pid {pid}) was killed by SIGKILL; was there enough memory?\n"]
    assert all(map(is_gone, pids(tmp_path)))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_all_and_lets_them_write(launch, tmp_path, number, status):
    def interrupt(parent: int) -> None:
        assert wait_for(lambda: ready(tmp_path))
        os.kill(parent, number)

    outcome = launch("interrupted", interrupt)
    assert outcome.statuses == [status]
    assert outcome.err == [""]
    assert all(map(is_gone, pids(tmp_path)))
    saved = sorted(path.name for path in tmp_path.glob("saved*"))
    assert saved == (["saved0", "saved1"] if number == signal.SIGINT else [])


def test_hanging_up_ends_nothing_after_nohup(zygote, tmp_path):
    def hang_up(parents: list[int], _: object) -> None:
        assert wait_for(lambda: ready(tmp_path))
        for number in (signal.SIGHUP, signal.SIGTERM):
            os.kill(parents[0], number)
            time.sleep(0.2)

    outcome = zygote.run(
        "launcher_after_nohup", [{}], "interrupted", str(tmp_path), meanwhile=hang_up
    )
    assert outcome.statuses == [128 + signal.SIGTERM]


def test_a_killed_parent_leaves_no_orphans_that_have_imported_nothing_yet(launch, tmp_path):
    def kill(parent: int) -> None:
        assert wait_for(lambda: ready(tmp_path))
        os.kill(parent, signal.SIGKILL)

    outcome = launch("deaf", kill)
    assert outcome.statuses == [-9]
    assert wait_for(lambda: all(map(is_gone, pids(tmp_path))))


def test_children_import_nothing_from_the_current_folder(launch):
    assert launch("safe").out[0].splitlines() == 2 * ["True"]


def test_two_interrupts_while_children_save(launch, tmp_path):
    def interrupt(parent: int) -> None:
        assert wait_for(lambda: ready(tmp_path))
        os.kill(parent, signal.SIGINT)
        assert wait_for(lambda: len(list(tmp_path.glob("saving*"))) == 2)
        os.kill(parent, signal.SIGINT)

    outcome = launch("saving", interrupt)
    assert outcome.statuses == [130]
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved0", "saved1"]


def test_ctrl_z_stops_the_children_too(launch, tmp_path):
    def stop(parent: int) -> None:
        assert wait_for(lambda: ready(tmp_path))
        os.kill(parent, signal.SIGTSTP)
        family = [parent, *pids(tmp_path)]
        assert wait_for(lambda: [state(pid) for pid in family] == ["T"] * 3)
        os.kill(parent, signal.SIGCONT)
        assert wait_for(lambda: "T" not in map(state, family))
        os.kill(parent, signal.SIGTERM)

    assert launch("deaf", stop).statuses == [143]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_stopped_rank_does_not_keep_the_launcher_waiting(launch, tmp_path):
    outcome = launch("stopped")
    waited = time.time() - (tmp_path / "stopped").stat().st_mtime
    crowd = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert waited < 20 * crowd  # SIGTERM alone would be 30
    assert outcome.statuses == [3]
    pattern = r"rank 1 \(pid \d+ on \S+\) has not been heard of for \d+ s, last at step \d+\n"
    assert re.fullmatch(pattern, outcome.err[0])
    assert all(map(is_gone, pids(tmp_path)))


FIRST = Failure(0, 10, 3, "rank 1 has not been heard of")


def test_a_mistake_that_all_ranks_make_is_said_once():
    mistakes = [FIRST, Failure(1, 11, 2, "error: a"), Failure(2, 12, 2, "error: a")]
    assert first_cause(mistakes) == Cause(("error: a",), 2)
    other = Failure(3, 13, 2, "error: b")
    assert first_cause([*mistakes, other]) == Cause(("error: a", "error: b"), 2)


def test_a_death_comes_before_what_it_brings():
    cause = first_cause([FIRST, Failure(1, 11, -9)])
    assert cause == Cause(("rank 1 (pid 11) was killed by SIGKILL; was there enough memory?",), 3)
    cause = first_cause([FIRST, Failure(1, 11, 7)])
    assert cause == Cause(("rank 1 (pid 11) failed with exit status 7",), 1)
    assert first_cause([FIRST]) == Cause(("rank 1 has not been heard of",), 3)


def test_launcher_and_children_listen_on_loopback_only(launch):
    outcome = launch("listens")
    assert outcome.statuses == [0], outcome.err
    assert set(outcome.out[0].split()) == {"127.0.0.1"}
