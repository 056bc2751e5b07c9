"""H by hand, rounds as pictures, and nested rounds against an odometer that anyone can check."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import localsgd.schedule
from localsgd.errors import UserError
from localsgd.optimizer.settings import settings_of
from localsgd.schedule.fixed import every, piecewise, post_local, warmup
from localsgd.schedule.progress import Progress, Schedule, epochs, fraction
from localsgd.schedule.rounds import Position, picture, rounds
from tests.odometer import odometer


def lengths(schedule: Schedule, steps: int) -> list[int]:
    return [schedule(Progress(step)) for step in range(steps)]


def by_loss(progress: Progress) -> int:
    return 1 if progress.loss > 2 else 4  # type: ignore[operator]  # as users write it


def of_another_fault(progress: Progress) -> int:
    return None + 1  # type: ignore[operator]


def test_a_schedule_that_does_not_reckon_with_none_is_told_so() -> None:
    said = r"by_loss fails at step 0 \(.*NoneType.*\), when epoch, fraction, .*loss"
    with pytest.raises(UserError, match=said):
        picture([by_loss], 4)
    with pytest.raises(UserError, match="by_loss fails"):
        settings_of(2, by_loss, None, "gradients", None, None)
    known = Progress(epoch=1.0, fraction=0.5, learning_rate=0.1, loss=3.0, seconds=1.0)
    assert picture([by_loss], 4, lambda step: known) == ".1.1.1.1"
    with pytest.raises(TypeError, match="NoneType"):
        picture([of_another_fault], 4, lambda step: known)


# H by hand


def test_post_local_is_local_from_the_very_step_on() -> None:
    assert lengths(post_local(4, after=2), 4) == [1, 1, 4, 4]
    assert lengths(post_local(4, after=0), 2) == [4, 4]


def test_post_local_waits_for_the_first_decay() -> None:
    assert post_local(4)(Progress(10**6)) == 1
    assert post_local(4)(Progress(10**6, decayed=True)) == 4


def test_warmup_shapes() -> None:
    assert lengths(warmup(5, 4), 6) == [1, 2, 3, 4, 5, 5]
    assert lengths(warmup(8, 6, "exponential"), 8) == [1, 1, 2, 2, 4, 4, 8, 8]
    assert lengths(warmup(6, 4, "exponential"), 6) == [1, 1, 2, 2, 6, 6]
    assert lengths(warmup(8, 3, "constant"), 5) == [1, 1, 1, 8, 8]
    assert lengths(warmup(8, 0), 2) == [8, 8]


@given(st.integers(1, 300), st.integers(1, 300), st.data())
def test_warmup_rounds_as_exact_numbers_do(h: int, period: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(0, period - 1))
    linear = 1 + math.floor(Fraction((h - 1) * step, period))
    assert warmup(h, period)(Progress(step)) == linear
    power = max(p for p in range(10) if 2 ** (p * period) <= h**step)
    assert warmup(h, period, "exponential")(Progress(step)) == 2**power


def test_linear_warmup_is_not_off_by_one_where_a_quotient_rounds_down() -> None:
    assert warmup(23, 22)(Progress(15)) == 16  # 22 * (15 / 22) is a little under 15


def test_piecewise_changes_at_its_keys() -> None:
    assert lengths(piecewise({3: 2, 0: 1, 5: 9}), 7) == [1, 1, 1, 2, 2, 9, 9]


def test_points_of_a_run_in_steps() -> None:
    assert epochs(150, steps_per_epoch=98) == 14_700
    assert epochs(0.5, steps_per_epoch=3) == 2
    assert epochs(0.4, steps_per_epoch=3) == 2  # the first step at or after 1.2
    assert epochs(1.1, steps_per_epoch=10) == 11  # 1.1 * 10 is a little over 11 in floating point
    assert fraction(0.5, steps=300) == 150
    assert fraction(0.5, steps=3) == 2
    assert fraction(0.4, steps=3) == 2
    assert fraction(0.07, steps=100) == 7  # 0.07 * 100 is a little over 7 in floating point
    assert fraction(1, steps=7) == 7


untyped: Any = localsgd.schedule


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: untyped.every(0), "H = 0 is no number of steps"),
        (lambda: untyped.every(1.5), "H = 1.5 is no number of steps"),
        (lambda: untyped.every(True), "H = True is no number of steps"),
        (lambda: untyped.every(float("nan")), "H = nan is no number of steps"),
        (lambda: untyped.every(float("inf")), "H = inf is no number of steps"),
        (lambda: untyped.every("two"), "H = 'two' is no number of steps"),
        (lambda: untyped.every(None), "H = None is no number of steps"),
        (lambda: untyped.post_local(-1, after=3), "H = -1 is no number of steps"),
        (lambda: untyped.post_local(4, after=-1), "after = -1 is no point of a run"),
        (lambda: untyped.post_local(4, after=2.5), "after = 2.5 is no point of a run"),
        (lambda: untyped.post_local(4, after="decay"), "after = 'decay' is no point of a run"),
        (lambda: untyped.post_local(4, after=None), "after = None is no point of a run"),
        (lambda: untyped.post_local(4, after=float("nan")), "after = nan is no point of a run"),
        (lambda: untyped.warmup(4, -1), "period = -1 is no number of steps"),
        (lambda: untyped.warmup(4, 2.5), "period = 2.5 is no number of steps"),
        (lambda: untyped.warmup(4, float("inf")), "period = inf is no number of steps"),
        (lambda: untyped.warmup(4, 3, "cubic"), "warm-up shape 'cubic' is unknown"),
        (lambda: untyped.piecewise({}), "does not say what H is at step 0"),
        (lambda: untyped.piecewise({5: 2}), "does not say what H is at step 0"),
        (lambda: untyped.piecewise({0: 1, -5: 2}), "give whole numbers >= 0 as keys"),
        (lambda: untyped.piecewise({0: 1, "5": 2}), "give whole numbers >= 0 as keys"),
        (lambda: untyped.piecewise({0: 1, 2.5: 2}), "give whole numbers >= 0 as keys"),
        (lambda: untyped.piecewise({0: 1, 5: 0}), "H = 0 is no number of steps"),
        (lambda: untyped.epochs(-1, steps_per_epoch=4), "no point of a run"),
        (lambda: untyped.epochs(1, steps_per_epoch=0), "no point of a run"),
        (lambda: untyped.fraction(1.5, steps=4), "no point of a run"),
        (lambda: untyped.fraction(0.5, steps=0), "no point of a run"),
    ],
)
def test_mistakes_are_refused_in_one_line(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError) as refused:
        make()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_schedule_that_gives_nothing_to_do_is_refused() -> None:
    with pytest.raises(UserError, match="H = 0"):
        next(rounds([lambda progress: 0], Progress))


def test_whole_numbers_of_another_type_become_plain_ones() -> None:
    assert type(untyped.post_local(4.0, after=8.0).after) is int
    assert all(type(start) is int for start in untyped.piecewise({0.0: 1, 5.0: 2}).starts)


# Rounds as pictures: a dot for a local step, then how many levels average


@pytest.mark.parametrize(
    ("schedules", "drawn"),
    [
        ([every(1)], ".1.1.1.1.1.1.1.1"),
        ([every(4)], "....1....1"),
        ([post_local(3, after=2)], ".1.1...1...1"),
        ([warmup(3, 4)], ".1.1..1...1."),
        ([every(1), every(1)], ".2.2.2.2.2.2.2.2"),
        ([every(2), every(2)], "..1..2..1..2"),
        ([every(2), every(1)], "..2..2..2..2"),
        ([every(1), every(4)], ".1.1.1.2.1.1.1.2"),
        ([every(3), every(2)], "...1...2.."),  # cut short by the budget
        ([every(1), every(2), every(2)], ".1.2.1.3.1.2.1.3"),
        ([every(1), every(1), every(4)], ".2.2.2.3.2.2.2.3"),
        ([every(1), post_local(2, after=3)], ".2.2.2.1.2.1.2.1"),
        # A long outer round keeps its length; the inner one may change inside it.
        ([piecewise({0: 1, 3: 2}), every(3)], ".1.1.2..1..1."),
    ],
)
def test_pictures(schedules: Sequence[Schedule], drawn: str) -> None:
    assert picture(schedules, steps=8) == drawn


def test_a_picture_shows_the_first_decay_where_it_is_told_of_one() -> None:
    assert picture([post_local(2)], 4) == ".1.1.1.1"
    assert picture([post_local(2)], 6, lambda s: Progress(s, decayed=s >= 2)) == ".1.1..1..1"


def test_the_papers_example() -> None:
    """H = 3, H^b = 2 (Lin et al. 2020, figure on hierarchical local SGD)."""
    assert picture([every(3), every(2)], 12) == "...1...2...1...2"


@pytest.mark.parametrize(("h", "within"), [(1, 15), (2, 7), (4, 3), (8, 1), (16, 0)])
def test_synchronisations_of_the_papers_table(h: int, within: int) -> None:
    """H H^b = 16 steps (Lin et al. 2020, table of hierarchical local SGD).

    Those "within node" are the ones that are not part of one over nodes: 16 / H - 1.
    """
    drawn = picture([every(h), every(16 // h)], 16)
    assert drawn.count("1") == within
    assert drawn.count("2") == 1


# Against an odometer


def marks(schedules: Sequence[Schedule], steps: int, position: Position | None = None) -> list[int]:
    """The same, from `rounds`, moved along as the core loop does."""
    position = position or Position.start(len(schedules))
    depths: list[int] = []
    while len(depths) < steps:
        depths.append(one_step(schedules, position, len(depths)))
    return depths


def one_step(schedules: Sequence[Schedule], position: Position, done: int) -> int:
    """Begins or goes on with a round, in the way of a run that was just resumed."""
    turn = next(rounds(schedules, lambda: Progress(done), position))
    position.left[0] -= 1
    if turn.local_steps > 1:
        return 0
    position.close()
    return turn.depth


small_schedules = st.one_of(
    st.builds(every, st.integers(1, 5)),
    st.builds(post_local, st.integers(1, 5), st.integers(0, 20)),
    st.builds(warmup, st.integers(1, 6), st.integers(0, 20), st.sampled_from(["linear"])),
    st.builds(
        lambda later: piecewise({0: 2, **later}),
        st.dictionaries(st.integers(1, 30), st.integers(1, 4), max_size=3),
    ),
)
nested = st.lists(small_schedules, min_size=1, max_size=4)


@given(nested, st.integers(1, 60))
def test_rounds_are_the_odometer(schedules: list[Schedule], steps: int) -> None:
    assert marks(schedules, steps) == odometer(schedules, steps)


@given(nested, st.integers(1, 60))
def test_an_undisturbed_generator_is_the_odometer(schedules: list[Schedule], steps: int) -> None:
    depths: list[int] = []

    def progress() -> Progress:
        return Progress(len(depths))

    for turn in rounds(schedules, progress):
        depths += [0] * (turn.local_steps - 1) + [turn.depth]
        if len(depths) >= steps:
            break
    assert depths[:steps] == odometer(schedules, steps)


@given(nested, st.integers(1, 60))
def test_the_picture_is_the_odometer(schedules: list[Schedule], steps: int) -> None:
    drawn = "".join("." + (str(d) if d else "") for d in odometer(schedules, steps))
    assert picture(schedules, steps) == drawn


@given(nested, st.integers(0, 30), st.integers(1, 30))
def test_a_run_resumed_at_any_step_goes_on_as_if_undisturbed(
    schedules: list[Schedule], before: int, after: int
) -> None:
    undisturbed = marks(schedules, before + after)
    position = Position.start(len(schedules))
    marks(schedules, before, position)
    resumed = copy.deepcopy(position)
    depths = [one_step(schedules, resumed, before + done) for done in range(after)]
    assert undisturbed[before:] == depths


@given(nested, st.integers(1, 60))
def test_shared_levels_have_averaged_after_every_step_so_far(
    schedules: list[Schedule], steps: int
) -> None:
    depths = odometer(schedules, steps)
    position = Position.start(len(schedules))
    for done in range(steps):
        turn = next(rounds(schedules, lambda done=done: Progress(done), position))
        assert turn.lockstep == position.lockstep
        # What the round promises for itself counts: a shared level averages at its end too.
        upto = depths[: done + turn.local_steps]
        assert len(upto) == steps or turn.lockstep == min(upto)
        position.left[0] -= 1
        if turn.local_steps == 1:
            position.close()


def test_a_level_that_stopped_sharing_never_shares_again() -> None:
    turns = rounds([piecewise({0: 1, 1: 2, 3: 1})], lambda: Progress(done))
    done, seen = 0, []
    for turn in turns:
        seen.append(turn.lockstep)
        done += turn.local_steps
        if done >= 5:
            break
    assert seen == [1, 0, 0, 0]


def test_schedules_are_asked_only_where_a_round_of_theirs_begins() -> None:
    asked: list[tuple[str, int]] = []

    def spy(name: str, length: int) -> Schedule:
        def schedule(progress: Progress) -> int:
            asked.append((name, progress.step))
            return length

        return schedule

    marks([spy("inner", 2), spy("outer", 3)], 7)
    assert asked == [
        ("inner", 0),
        ("outer", 0),
        ("inner", 2),
        ("inner", 4),
        ("inner", 6),
        ("outer", 6),
    ]


def test_closing_between_rounds_does_nothing() -> None:
    position = Position.start(2)
    position.close()
    assert position == Position([0, 0], [0, 0], lockstep=2, depth=0, memories=[{}, {}])
