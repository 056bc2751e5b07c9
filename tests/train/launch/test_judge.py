from __future__ import annotations

from collections.abc import Sequence

from localsgd.train.launch.judge import Judge, State, Status

WORKING = Status(1, 20, State.WORKING, "pid 7 on h")


def verdicts(statuses: Sequence[Status | None], patience: float = 4.0) -> list[str | None]:
    """What a watch says of rank 3 second by second."""
    watch = Judge(patience, limit=5)
    said = []
    for second, status in enumerate(statuses):
        watch.look(float(second))
        watch.hear(3, status)
        said.append(watch.lost())
    return said


def test_a_status_that_does_not_change_is_silence():
    said = verdicts([WORKING] * 6)
    assert said[:5] == [None] * 5
    assert said[5] == "rank 3 (pid 7 on h) has not been heard of for 5 s, last at step 20"


def test_a_rank_that_was_never_heard_of():
    assert verdicts([None] * 6)[5] == "rank 3 has not been heard of for 5 s"


def test_statuses_without_a_step_are_a_hang_unless_the_rank_waits():
    alive = [WORKING._replace(count=n) for n in range(6)]
    assert verdicts(alive)[4:] == [
        None,
        "rank 3 (pid 7 on h) has made no step for 5 s, last at step 20; steps that take so long "
        "need a larger --heartbeat-seconds (now 5)",
    ]
    waiting = [status._replace(state=State.WAITING) for status in alive]
    assert verdicts(waiting) == [None] * 6
    assert verdicts([*waiting[:3], *alive[3:]]) == [None] * 6  # the seconds start with the work
    assert verdicts([status._replace(step=status.count) for status in alive]) == [None] * 6


def test_a_rank_that_is_done_may_be_silent():
    assert verdicts([WORKING, *[WORKING._replace(count=2, state=State.DONE)] * 9]) == [None] * 10


def test_suspicion_shortens_the_patience_with_silence_only():
    watch = Judge(10.0, limit=12)
    watch.suspect(2.0)
    for second in range(8):
        watch.look(second / 2)
        watch.hear(1, WORKING._replace(count=second))
        watch.hear(2, WORKING)
    assert str(watch.lost()).startswith("rank 2 (pid 7 on h) has not been heard of")


def test_who_was_stopped_itself_blames_nobody():
    watch = Judge(4.0, limit=5)
    for clock in (0.0, 1.0, 1000.0):
        watch.look(clock)
        watch.hear(3, WORKING)
    assert watch.lost() is None
