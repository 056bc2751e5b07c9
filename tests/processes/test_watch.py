from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from localsgd.processes.pulse import Pulse, State
from localsgd.processes.watch import Watch

PULSE = Pulse(1, 1, State.WORKING, pid=7, host="h", parent=1)


def verdicts(pulses: Sequence[Pulse | None], patience: float = 4.0) -> list[str | None]:
    """What a watch says of rank 3 second by second."""
    watch = Watch(patience, limit=5)
    said = []
    for second, pulse in enumerate(pulses):
        watch.look(float(second))
        watch.hear(3, pulse)
        verdict = watch.verdict()
        said.append(verdict.text if verdict else None)
    return said


def test_a_pulse_that_does_not_change_is_silence():
    said = verdicts([PULSE] * 6)
    assert said[:5] == [None] * 5
    assert said[5] == "rank 3 (pid 7 on h) has not been heard of for 5 s"


def test_a_rank_that_was_never_heard_of():
    assert verdicts([None] * 6)[5] == "rank 3 has not been heard of for 5 s"


def test_pulses_without_a_beat_are_a_hang_unless_the_rank_waits():
    alive = [replace(PULSE, count=n) for n in range(6)]
    assert verdicts(alive)[4:] == [
        None,
        "rank 3 (pid 7 on h) has made no step for 5 s; steps that take so long need a larger "
        "--heartbeat-seconds (now 5)",
    ]
    waiting = [replace(pulse, state=State.WAITING) for pulse in alive]
    assert verdicts(waiting) == [None] * 6
    assert verdicts([*waiting[:3], *alive[3:]]) == [None] * 6  # the seconds start with the work
    assert verdicts([replace(pulse, beats=pulse.count) for pulse in alive]) == [None] * 6


def test_a_rank_that_is_done_may_be_silent():
    assert verdicts([PULSE, *[replace(PULSE, count=2, state=State.DONE)] * 9]) == [None] * 10


def test_suspicion_shortens_the_patience_with_silence_only():
    watch = Watch(10.0, limit=12)
    watch.suspect(2.0)
    for second in range(8):
        watch.look(second / 2)
        watch.hear(1, replace(PULSE, count=second))
        watch.hear(2, PULSE)
    verdict = watch.verdict()
    assert verdict is not None
    assert (verdict.rank, verdict.fallen_silent) == (2, True)


def test_who_was_stopped_itself_blames_nobody():
    watch = Watch(4.0, limit=5)
    for clock in (0.0, 1.0, 1000.0):
        watch.look(clock)
        watch.hear(3, PULSE)
    assert watch.verdict() is None
