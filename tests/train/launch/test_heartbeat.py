from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from localsgd.errors import UserError
from localsgd.train.launch import Heartbeat, World

pytestmark = pytest.mark.timeout(120)
SILENT = r"has not been heard of for \d+ s(, last at step \d+)?"
WHO = r"rank {} \(pid \d+ on \S+\)"


def line(rank: int, rest: str) -> re.Pattern[str]:
    """One line of output and nothing else."""
    return re.compile(f"{WHO.format(rank)} {rest}\n")


def test_a_killed_rank_is_named_in_a_long_local_phase(zygote, torchrun):
    outcome = zygote.run("lost_in_local_phase", torchrun(3), 2, "SIGKILL")
    assert outcome.statuses == [3, 3, -9]
    for rank in (0, 1):
        assert line(2, SILENT).fullmatch(outcome.err[rank])
        assert outcome.seconds[rank] - outcome.seconds[2] < 3.5
    assert outcome.err[0] == outcome.err[1]


def test_a_stopped_rank_is_named_and_ends_when_it_goes_on(zygote, torchrun):
    outcome = zygote.run("lost_in_local_phase", torchrun(3), 1, "SIGSTOP", left=[1])
    assert outcome.statuses == [3, 3, 3]
    for rank in (0, 2):
        assert line(1, SILENT).fullmatch(outcome.err[rank])


def test_a_rank_that_is_stopped_for_less_than_the_limit_is_not_lost(zygote, torchrun):
    """Nor when it is stopped for longer, and the others with it: who was stopped blames nobody."""

    def stop(victims: Sequence[int], seconds: float) -> Callable[[list[int], Path], None]:
        def meanwhile(pids: list[int], folder: Path) -> None:
            outs = [folder / f"{rank}.out" for rank in range(3)]
            while not all(out.is_file() and out.read_text() for out in outs):
                time.sleep(0.02)
            for number, wait in ((signal.SIGSTOP, seconds), (signal.SIGCONT, 0.0)):
                for rank in victims:
                    os.kill(pids[rank], number)
                time.sleep(wait)

        return meanwhile

    for victims, seconds in (([1], 1.0), ([0, 1, 2], 5.0)):
        outcome = zygote.run("works_on", torchrun(3), meanwhile=stop(victims, seconds))
        assert outcome.statuses == [0, 0, 0]
        assert outcome.err == ["", "", ""]


def test_cores_that_are_all_taken_are_no_reason_for_an_alarm(zygote, torchrun):
    loops = 3 * len(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        for _ in range(loops):
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        outcome = zygote.run("works_on", torchrun(3), 12.0)
    assert outcome.statuses == [0, 0, 0]
    assert outcome.err == ["", "", ""]


def test_a_rank_that_loops_is_named_not_those_that_wait_for_it(zygote, torchrun):
    outcome = zygote.run("lost_in_collective", torchrun(3), "loop")
    assert outcome.statuses == [3, 3, 3]
    for err in outcome.err:
        assert line(
            1, r"has made no step for \d s, last at step \d+; .* --heartbeat-seconds \(now 3\)"
        ).fullmatch(err)


def test_a_broken_connection_gets_a_name_soon(zygote, torchrun):
    outcome = zygote.run("lost_in_collective", torchrun(3), "SIGKILL", 30.0)
    assert outcome.statuses == [3, -9, 3]
    for rank in (0, 2):
        assert outcome.seconds[rank] - outcome.seconds[1] < 20
        assert line(1, SILENT).fullmatch(outcome.err[rank])


@pytest.mark.parametrize("scenario", ["raises_in_local_phase", "lost_in_collective"])
def test_a_rank_that_raises_says_why(zygote, torchrun, scenario):
    arguments = ["raise"] if scenario == "lost_in_collective" else []
    outcome = zygote.run(scenario, torchrun(2), *arguments)
    assert outcome.statuses == [3, 1]
    assert line(1, "failed: ValueError: boom").fullmatch(outcome.err[0])


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_the_rank_that_holds_the_store_is_named(zygote, torchrun, how):
    outcome = zygote.run("lost_in_local_phase", torchrun(2), 0, how, left=[0])
    assert outcome.statuses == ([-9, 3] if how == "SIGKILL" else [3, 3])
    rest = {
        "SIGKILL": "is gone, and the run's store with it",
        "SIGSTOP": r"keeps the run's store and has not answered for \d s",
    }
    assert line(0, rest[how]).fullmatch(outcome.err[1])


@pytest.mark.parametrize("scenario", ["early_end", "early_end_of_store"])
def test_a_rank_that_ends_in_good_order_is_not_blamed(zygote, torchrun, scenario):
    outcome = zygote.run(scenario, torchrun(3))
    assert outcome.statuses == [0, 0, 0]
    assert outcome.err == ["", "", ""]


def test_one_process_has_no_heartbeat_and_a_limit_must_be_positive():
    with Heartbeat(World()) as heartbeat, heartbeat.waiting():
        heartbeat.beat()
    with pytest.raises(UserError, match="more than 0"):
        Heartbeat(World(), 0)
