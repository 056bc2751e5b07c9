from __future__ import annotations

import re

import pytest

from localsgd.errors import UserError
from localsgd.processes import Heartbeat, World

pytestmark = pytest.mark.timeout(120)
WHO = r"rank {} \(pid \d+ on \S+\)"


def line(rank: int, rest: str) -> re.Pattern[str]:
    """One line of output and nothing else."""
    return re.compile(f"{WHO.format(rank)} {rest}\n")


def test_a_killed_rank_is_named_in_a_long_local_phase(zygote, torchrun):
    outcome = zygote.run("lost_in_local_phase", torchrun(3), 2, "SIGKILL")
    assert outcome.statuses == [3, 3, -9]
    for rank in (0, 1):
        assert line(2, r"has not been heard of for \d s").fullmatch(outcome.err[rank])
        assert outcome.seconds[rank] - outcome.seconds[2] < 3.5
    assert outcome.err[0] == outcome.err[1]


def test_a_stopped_rank_is_named_and_ends_when_it_goes_on(zygote, torchrun):
    outcome = zygote.run("lost_in_local_phase", torchrun(3), 1, "SIGSTOP", left=[1])
    assert outcome.statuses == [3, 3, 3]
    for rank in (0, 2):
        assert line(1, r"has not been heard of for \d s").fullmatch(outcome.err[rank])


def test_a_rank_that_loops_is_named_not_those_that_wait_for_it(zygote, torchrun):
    outcome = zygote.run("lost_in_collective", torchrun(3), "loop")
    assert outcome.statuses == [3, 3, 3]
    for err in outcome.err:
        assert line(
            1, r"has made no step for \d s; steps .* larger --heartbeat-seconds \(now 3\)"
        ).fullmatch(err)


def test_a_broken_connection_gets_a_name_soon(zygote, torchrun):
    outcome = zygote.run("lost_in_collective", torchrun(3), "SIGKILL", 30.0)
    assert outcome.statuses == [3, -9, 3]
    for rank in (0, 2):
        assert outcome.seconds[rank] - outcome.seconds[1] < 20
        assert line(1, r"has not been heard of for \d s").fullmatch(outcome.err[rank])


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
