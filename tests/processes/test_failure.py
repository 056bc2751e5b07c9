from __future__ import annotations

from localsgd.processes.failure import Cause, Failure, first_cause

ENDED = Failure(0, 10, -15)  # by the launcher, because of the others


def test_a_mistake_that_all_ranks_make_is_said_once():
    mistakes = [ENDED, Failure(1, 11, 2, "error: a"), Failure(2, 12, 2, "error: a")]
    assert first_cause(mistakes) == Cause(("error: a",), 2)
    other = Failure(3, 13, 2, "error: b")
    assert first_cause([*mistakes, other]) == Cause(("error: a", "error: b"), 2)


def test_a_death_comes_before_what_it_brings():
    noticed = Failure(2, 12, 3, "rank 1 has not been heard of")
    cause = first_cause([ENDED, noticed, Failure(1, 11, -9)])
    assert cause == Cause(("rank 1 (pid 11) was killed by SIGKILL; was there enough memory?",), 3)
    cause = first_cause([ENDED, noticed, Failure(1, 11, 7)])
    assert cause == Cause(("rank 1 (pid 11) failed with exit status 7",), 1)
    cause = first_cause([ENDED, Failure(1, 11, -15)])
    assert cause == Cause(("rank 0 (pid 10) was killed by SIGTERM",), 3)


def test_a_rank_that_hung_was_killed_for_it():
    words = "rank 1 has not been heard of"
    killed = Failure(1, 11, -9)
    for status in (3, -15):  # the launcher may be quicker than the exit
        cause = first_cause([killed, Failure(0, 10, status, words, ended=(1,))])
        assert cause == Cause((words,), 3)
