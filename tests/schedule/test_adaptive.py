"""The sequences of H that the formulas of the papers give, worked out by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest

from localsgd.errors import UserError
from localsgd.schedule.adaptive import adacomm, cyclic, decreasing, plateau, qsr, waiting_below
from localsgd.schedule.progress import Progress, Schedule
from localsgd.schedule.rounds import Position, picture, rounds


def sequence(schedule: Schedule, seen: list[Progress]) -> list[int]:
    """H at each of these points, with one memory for all."""
    memory: dict[str, float] = {}
    return [schedule(dataclasses.replace(at, memory=memory)) for at in seen]


def test_qsr_by_hand() -> None:
    """(1/γ)² is 1.6, 2.8, 4, 8.7, 11.1 and 25: rounded down, and never below the base."""
    rates = [0.8, 0.6, 0.5, 0.34, 0.3, 0.2]
    seen = [Progress(step, learning_rate=rate) for step, rate in enumerate(rates)]
    assert sequence(qsr(1, 1.0, longest=1000), seen) == [1, 2, 4, 8, 11, 25]
    assert sequence(qsr(3, 1.0, longest=1000), seen) == [3, 3, 4, 8, 11, 25]


def test_qsr_is_not_off_by_one_where_a_quotient_rounds_down() -> None:
    assert (
        qsr(1, 0.3, longest=1000)(Progress(learning_rate=0.1)) == 9
    )  # (0.3 / 0.1)² is a little under 9
    assert qsr(1, 0.2, longest=1000)(Progress(learning_rate=0.01)) == 400


def test_qsr_takes_its_base_where_nobody_knows_the_rate() -> None:
    assert qsr(4, 0.2)(Progress(100)) == 4


def test_qsr_keeps_to_its_base_while_the_rate_warms_up() -> None:
    schedule = qsr(2, 0.2, warmup=10, longest=1000)
    assert schedule(Progress(9, learning_rate=0.001)) == 2
    assert schedule(Progress(10, learning_rate=0.02)) == 100


def test_qsr_is_no_longer_than_a_quarter_of_the_run() -> None:
    """It is a part of what is done where nobody says how long a run is; its base is never cut."""
    small = 1e-6  # (0.2/1e-6)² = 4e10
    rule = qsr(4, 0.2)
    unknown = [Progress(step, learning_rate=small) for step in (0, 15, 100, 102)]
    assert sequence(rule, unknown) == [4, 4, 25, 26]
    known = [
        Progress(step, fraction=step / 1000, learning_rate=small) for step in (0, 10, 600, 990)
    ]
    assert sequence(rule, known) == [4, 250, 250, 250]
    assert rule(Progress(10, fraction=0.01, learning_rate=1e-200)) == 250
    assert sequence(qsr(4, 0.2, longest=60), known) == [60] * 4


def test_qsr_does_not_sleep_through_a_warm_up() -> None:
    """A rate that starts at 4 % of its peak, as OneCycleLR's: some syncs in 60 steps, not two."""

    def progress(step: int) -> Progress:
        return Progress(step, learning_rate=0.1 * min(1.0, 0.04 + step / 20))

    drawn = picture([qsr(1, 0.1)], 60, progress)
    assert drawn.count("1") > 30
    assert drawn.endswith(".1" * 30)


def test_qsr_says_when_its_next_sync_lies_beyond_the_run() -> None:
    rule, memory = qsr(4, 0.2, longest=1000), {}
    seen = Progress(100, fraction=0.1, learning_rate=0.001, memory=memory)
    with pytest.warns(UserWarning, match="H = 1000 at step 100, and 900 steps .* are left"):
        assert rule(seen) == 1000
    assert rule(seen) == 1000  # said once
    # The last round of a run is cut as a matter of course.
    assert rule(Progress(900, fraction=0.9, learning_rate=0.001)) == 1000


def test_qsr_refuses_a_rate_of_zero() -> None:
    with pytest.raises(UserError, match="which is 0 at step 7"):
        qsr(2, 0.2)(Progress(7, learning_rate=0.0))


def test_adacomm_follows_the_root_of_the_loss_and_halves_where_that_does_not_fall() -> None:
    losses = [4.0, 4.0, 1.0, 1.0, 3.9]
    seen = [Progress(10 * i, loss=loss, learning_rate=0.1) for i, loss in enumerate(losses)]
    # ceil(16 sqrt(F/F0)): 16 is no less than 16, so half; 8; 8 is no less, so half; 16, so half.
    assert sequence(adacomm(16, period=10), seen) == [16, 8, 4, 2, 1]
    slow = [Progress(10 * i, loss=loss) for i, loss in enumerate([4.0, 2.25, 1.0, 0.25])]
    assert sequence(adacomm(16, period=10), slow) == [16, 12, 8, 4]


def test_adacomm_changes_at_multiples_of_its_period_alone() -> None:
    seen = [Progress(step, loss=4.0 / (1 + step)) for step in range(12)]
    found = sequence(adacomm(8, period=6), seen)
    assert found[:6] == [8] * 6
    assert found[6:] == [math.ceil(8 * math.sqrt(1 / 7))] * 6


def test_adacomm_with_the_rate() -> None:
    seen = [
        Progress(0, loss=4.0, learning_rate=0.4),
        Progress(10, loss=1.0, learning_rate=0.4),
        Progress(20, loss=1.0, learning_rate=0.1),
    ]
    assert sequence(adacomm(16, 10, with_rate=True), seen) == [16, 8, 16]


def test_adacomm_takes_the_first_rate_above_zero_as_the_first() -> None:
    """A warm-up may begin at 0, to which no rate can be compared."""
    rates = (0.0, 0.0, 0.4, 0.1)
    seen = [Progress(10 * k, loss=4.0, learning_rate=rate) for k, rate in enumerate(rates)]
    assert sequence(adacomm(8, 10, with_rate=True), seen) == [8, 8, 8, 16]


def test_decreasing() -> None:
    schedule = decreasing(10, period=4)
    assert [schedule(Progress(step)) for step in (0, 3, 4, 8, 12, 40)] == [10, 10, 5, 3, 2, 1]
    assert picture([decreasing(4, period=4)], 10) == "....1..1..1.1.1"


def test_plateau_switches_after_windows_that_do_not_improve() -> None:
    losses = [4.0] * 5 + [2.0] * 5 + [1.99] * 20
    seen = [Progress(step, loss=loss) for step, loss in enumerate(losses)]
    found = sequence(plateau(8, window=5, patience=2, threshold=0.01), seen)
    # Windows end at steps 5, 10, 15, 20; the means are 3.67 (six losses), 2, 1.99, 1.99.
    assert found == [1] * 20 + [8] * 10
    assert sequence(plateau(8, window=5, threshold=0.001), seen)[20] == 1


def test_a_plateau_is_of_windows_in_a_row() -> None:
    """One window that improves between two that stay begins the count anew."""
    # Means of windows of 1 step, from the first that is judged on: 8, 8, 4, 4, 4.
    losses = [8.0, 8.0, 8.0, 4.0, 4.0, 4.0, 4.0]
    seen = [Progress(step, loss=loss) for step, loss in enumerate(losses)]
    # Stays at step 2, improves at 3, stays at 4 and 5.
    assert sequence(plateau(8, window=1, patience=2), seen) == [1, 1, 1, 1, 1, 8, 8]
    assert sequence(plateau(8, window=1, patience=1), seen) == [1, 1, 8, 8, 8, 8, 8]


def test_a_fall_is_measured_from_the_best_window() -> None:
    """A threshold of 10 %: 10 to 9.2 is no fall, to 8.9 is one; 9.5 is none after that."""
    losses = [10.0, 10.0, 9.2, 8.9, 9.5, 8.7, 8.0]
    seen = [Progress(step, loss=loss) for step, loss in enumerate(losses)]
    found = sequence(plateau(8, window=1, patience=2, threshold=0.1), seen)
    assert found == [1, 1, 1, 1, 1, 8, 8]


@pytest.mark.parametrize("inner", [1, 3])
def test_the_waiting_share_is_met_by_the_least_h(inner: int) -> None:
    """Seconds are told at a sync of all and seen at the next; here after `inner` rounds."""
    schedule, share = waiting_below(0.1), 0.1
    work, wait = 1.0, 3.0  # seconds of a step and of a sync
    memory: dict[str, float] = {}
    step, seconds, waited = 0, 0.0, 0.0
    told: list[tuple[float, float]] = []
    found = []
    for _ in range(14):
        for _ in range(inner):
            seen = (
                dict(zip(("seconds", "waited_seconds"), told[-2], strict=True)) if told[1:] else {}
            )
            length = schedule(Progress(step, memory=memory, **seen))
            step += length
            waited += wait
            seconds += length * work + wait
        found.append(length)
        told.append((seconds, waited))
    least = math.ceil(wait * (1 - share) / (share * work))
    assert found == [1, 1, 1, 1, 2, 4, 8, 16, 27, 27, 27, 27, 27, 27]
    assert wait / (wait + least * work) <= share < wait / (wait + (least - 1) * work)


def test_a_loss_that_is_no_number_changes_nothing() -> None:
    losses = [4.0, 1.0, math.nan, math.inf, 1.0]
    seen = [Progress(step, loss=loss) for step, loss in enumerate(losses)]
    assert sequence(adacomm(16, period=1), seen)[:4] == [16, 8, 8, 8]
    assert sequence(adacomm(16, period=1), [Progress(0, loss=math.nan)]) == [16]


def test_every_cycle_begins_with_mini_batch_sgd_and_ends_with_a_sync() -> None:
    assert picture([cyclic(3, period=10, first=4)], 20) == ".1.1.1.1...1...1" * 2
    assert picture([cyclic(4, period=6, first=3)], 6) == ".1.1.1...1"


def test_memory_is_saved_with_the_position() -> None:
    schedule = adacomm(16, period=1)
    losses = iter([4.0, 1.0, 0.25, 0.01])
    position = Position.start(1)
    turns = rounds([schedule], lambda: Progress(step(), loss=next(losses)), position)
    steps = [0]

    def step() -> int:
        return steps[0]

    found = []
    for _ in range(4):
        turn = next(turns)
        found.append(turn.local_steps)
        steps[0] += turn.local_steps
    assert found == [16, 8, 4, 1]
    assert position.memories[0]["first_loss"] == 4.0


def test_two_adaptive_levels_remember_apart() -> None:
    """H falls with the loss, and so does H^b, of which each round of H is a step."""
    losses = {0: 16.0, 2: 16.0, 4: 4.0, 5: 4.0, 6: 1.0}
    position, step, found = Position.start(2), 0, []
    turns = rounds(
        [adacomm(2, period=4), adacomm(4, period=5)],
        lambda: Progress(step, loss=losses.get(step, 1.0)),
        position,
    )
    for _ in range(6):
        turn = next(turns)
        found.append((step, *position.lengths))
        step += turn.local_steps
    # ceil(2 sqrt(4/16)) = 1 at step 4. The outer round of 4 ends after step 6; by then
    # ceil(4 sqrt(1/16)) = 1.
    assert found == [(0, 2, 4), (2, 2, 4), (4, 1, 4), (5, 1, 4), (6, 1, 1), (7, 1, 1)]
    assert [memory["length"] for memory in position.memories] == [1, 1]
    assert [memory["period"] for memory in position.memories] == [1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: qsr(0, 0.1), "H_base = 0"),
        (lambda: qsr(1, -1.0), "alpha = -1.0"),
        (lambda: qsr(1, 0.1, longest=0), "longest = 0"),
        (lambda: qsr(8, 0.1, longest=4), "longest = 4 is below H_base = 8"),
        (lambda: adacomm(4, 0), "0 is no valid number of steps"),
        (lambda: adacomm(4, 5, shrink=1.0), "shrink = 1.0"),
        (lambda: decreasing(4, 5, factor=0.0), "factor = 0.0"),
        (lambda: plateau(4, 5, threshold=1.0), "threshold = 1.0"),
        (lambda: waiting_below(0.0), "budget = 0.0"),
        (lambda: cyclic(4, 5, first=6), "first = 6"),
    ],
)
def test_mistakes(make, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_a_wait_that_is_over_lets_h_fall_to_one() -> None:
    """Each of 20 syncs waits 6 seconds, and none from then on."""
    schedule, memory, found = waiting_below(0.1), dict[str, float](), []
    step, told = 0, [(0.0, 0.0)]
    for index in range(60):
        seen = dict(zip(("seconds", "waited_seconds"), told[-2], strict=True)) if told[1:] else {}
        length = schedule(Progress(step, memory=memory, **seen))
        wait = 6.0 if index < 20 else 0.0
        seconds, waited = told[-1]
        told.append((seconds + length + wait, waited + wait))
        step += length
        found.append(length)
    assert max(found) == 54  # a (1 - s)/(s c)
    assert found[-1] == 1


@pytest.mark.parametrize("shrink", [0.5, 0.9, 0.99])
def test_adacomm_lowers_h_where_the_loss_stays(shrink: float) -> None:
    seen = [Progress(step, loss=2.0) for step in range(0, 40)]
    found = sequence(adacomm(8, period=1, shrink=shrink), seen)
    assert found == sorted(found, reverse=True)
    assert found[-1] == 1


def test_a_plateau_of_a_loss_below_zero() -> None:
    """As a log-likelihood of densities has."""
    stays = [Progress(step, loss=-1.0) for step in range(30)]
    falls = [Progress(step, loss=-1.0 - step) for step in range(30)]
    assert sequence(plateau(8, window=5), stays)[-1] == 8
    assert sequence(plateau(8, window=5), falls)[-1] == 1
