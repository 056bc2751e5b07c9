"""Runs by K and H with B fixed: time to an accuracy, and local steps to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from experiments import clock, tuning
from experiments.arms import Arm, arm, found, jobs_of, untuned, values
from experiments.claims import claimed, conclude
from experiments.pictures import lines
from experiments.registry import entry
from experiments.study import Claim, Page, Records, Scale, Study, Table
from experiments.training import TrainJob

TIME = "fig:localsgd_scaling_performance_time_to_test_accuracy"
STEPS = "fig:cifar10_step_to_reach_912"
WORKERS = (1, 2, 4, 8, 16)
LOCAL_STEPS = (1, 2, 4, 8, 16)
PAPER_TARGET = 0.912
MARGIN = 0.018
"""At other scales the target is as far below the mean of K = 1 as in the paper (about 93 %)."""
Grid = Mapping[tuple[int, int], Arm]


def cell(scale: Scale, workers: int, local_steps: int) -> Arm:
    name = f"K = {workers}, H = {local_steps}"
    if local_steps == 1:
        return arm(scale, name, light=True, workers=workers, method="mini-batch")
    return arm(scale, name, light=True, workers=workers, method="local", local_steps=(local_steps,))


def grid(scale: Scale) -> Grid:
    """The cells by K and H; one worker is the same for every H."""
    return {
        (k, h): cell(scale, k, h) for k in reversed(WORKERS) for h in LOCAL_STEPS if k > 1 or h == 1
    }


def target(records: Records) -> float | None:
    """The accuracy to reach, a share of 1; `None` while K = 1 has not been run."""
    if records.scale.name == "paper":
        return PAPER_TARGET
    kept = values(records, cell(records.scale, 1, 1), "test_accuracy").values()
    return sum(kept) / len(kept) / 100 - MARGIN if kept else None


def times(records: Records, one: Arm) -> dict[int, float]:
    """Modelled time to the target, by seeds that reach it."""
    return _reached(records, one, lambda r, goal: clock.time_to(r, one.run.workers or 1, goal))


def steps(records: Records, one: Arm) -> dict[int, float]:
    return _reached(records, one, clock.steps_to)


def _reached(records: Records, one: Arm, measure) -> dict[int, float]:
    goal = target(records)
    if goal is None:
        return {}
    kept = {seed: measure(record, goal) for seed, record in found(records, one).items()}
    return {seed: value for seed, value in kept.items() if value is not None}


def speedups(records: Records, one: Arm, base: Arm) -> list[float]:
    """Speed-ups of an arm over `base`, for seeds that reach the target in both."""
    mine, theirs = times(records, one), times(records, base)
    return [theirs[seed] / mine[seed] for seed in mine if seed in theirs]


def _unreached(records: Records, one: Arm, base: Arm) -> str:
    """Why a comparison of two arms decides nothing: a finished run that misses the target is no
    missing one, and may be the slowest of all. Empty if all of them reach it.
    """
    arrived = [len(steps(records, arm)) for arm in (one, base)]
    done = [len(found(records, arm)) for arm in (one, base)]
    if arrived == done:
        return ""
    return f"reached by {arrived[0]} of {done[0]} ({arrived[1]} of {done[1]})"


def _behind(records: Records, *arms: Arm) -> tuple[TrainJob, ...]:
    """The runs behind a comparison of arms: their own, and those that set the target."""
    setting = () if records.scale.name == "paper" else (cell(records.scale, 1, 1),)
    return tuple(job for one in (*arms, *setting) for job in one.jobs)


def page_of_time(records: Records) -> Page:
    by = grid(records.scale)
    base, goal = by[1, 1], target(records)
    known = {
        (row["workers"], row["local_steps"]): row["speedup"]
        for row in entry("time-to-accuracy").values
    }
    rows = []
    for (k, h), one in by.items():
        over_one, over_plain = speedups(records, one, base), speedups(records, one, by[k, 1])
        reached = f"{len(times(records, one))} of {len(found(records, one))}"
        rows.append(
            [
                k,
                h,
                reached,
                _mean(over_one, records, one),
                _mean(over_plain, records, one),
                known.get((k, h), ""),
            ]
        )
    heading = "the target" if goal is None else f"{100 * goal:.2f} %"
    shown = Table(
        f"Speed-up in the modelled time to {heading}",
        ("K", "H", "reached by", "over one worker", "over H = 1", "paper: over H = 1"),
        rows,
        [one.jobs for one in by.values()],
    )
    groups = {
        f"H = {h}": {
            k: speedups(records, by[k, h] if k > 1 else base, base)
            for k in WORKERS
            if k > 1 or h == 1
        }
        for h in LOCAL_STEPS
    }
    picture = lines(
        "speedup",
        "Speed-up over one worker by K, a line for each H",
        groups,
        jobs_of([*by.values()]),
        x_label="K",
        y_label="speed-up (modelled)",
        log_y=True,
    )
    return Page([shown], [picture], list(_time_claims(records, by)), [clock.NOTE, TARGET_NOTE])


def _time_claims(records: Records, by: Grid) -> Iterator[Claim]:
    for (k, h), (other_k, other_h), factor, sentence in (
        ((16, 8), (16, 1), 2.0, "At K = 16, H = 8 is twice as fast as H = 1."),
        ((8, 8), (16, 1), 2.0, "Local SGD on 8 workers is twice as fast as mini-batch SGD on 16."),
    ):
        one, base = by[k, h], by[other_k, other_h]
        yield conclude(
            records,
            sentence,
            "section 4.1",
            [ratio - factor for ratio in speedups(records, one, base)],
            f"speed-up in modelled seconds of K = {k}, H = {h} over K = {other_k}, H = {other_h}, "
            f"less {factor:g}",
            _behind(records, one, base),
            family="time",
            least=0.1,
            seeds=len(one.jobs),
            lacking=_unreached(records, one, base),
            kind="modelled",
        )


def by_batch(scale: Scale) -> dict[int, dict[int, Arm]]:
    """The arms by H, then by K; the global batch grows with K."""
    return {h: {k: cell(scale, k, h) for k in (2, 4, 8, 16, 32)} for h in (1, 2)}


def points(scale: Scale) -> list[Arm]:
    """The arms of the figure of steps. The paper tunes each of them."""
    return [one for group in by_batch(scale).values() for one in group.values()]


def page_of_steps(records: Records) -> Page:
    by = {h: tuning.applied(records, group, group) for h, group in by_batch(records.scale).items()}
    goal = target(records)
    batch = records.scale.ground["batch"]
    rows = [
        [k, k * batch, h, f"{len(kept)} of {len(found(records, one))}", _mean(kept, records, one)]
        for h, group in by.items()
        for k, one in group.items()
        for kept in [list(steps(records, one).values())]
    ]
    heading = "the target" if goal is None else f"{100 * goal:.2f} %"
    shown = Table(
        f"Local steps to {heading}",
        ("K", "global batch", "H", "reached by", "steps"),
        rows,
        [one.jobs for group in by.values() for one in group.values()],
    )
    picture = lines(
        "steps",
        "Local steps to the target by the global batch, for H = 1 and 2",
        {
            f"H = {h}": {k * batch: list(steps(records, one).values()) for k, one in group.items()}
            for h, group in by.items()
        },
        jobs_of([one for group in by.values() for one in group.values()]),
        x_label="global batch",
        y_label="local steps",
        log_y=True,
    )
    base, one = by[1][32], by[2][32]
    first, second = steps(records, base), steps(records, one)
    # Without tuning the two have one rate, as H is all that they differ by.
    reservations = untuned([base, one] if records.scale.tunes else [])
    largest = conclude(
        records,
        "At the largest batch (K = 32), H = 2 needs no more local steps than mini-batch SGD, "
        "within a tenth.",
        "appendix B.3.3",
        [second[seed] / first[seed] - 1.1 for seed in second if seed in first],
        "steps of H = 2 over those of H = 1, less 1.1",
        _behind(records, one, base),
        family="time",
        bounds=claimed(-1),
        seeds=len(one.jobs),
        reservation="; ".join(reservations),
        lacking=_unreached(records, one, base),
    )
    grids = tuning.pictures(records, points(records.scale))
    return Page([shown], [picture, *grids], [largest], [TARGET_NOTE, POINTS_NOTE])


def jobs_of_steps(scale: Scale) -> list[TrainJob]:
    return jobs_of([*points(scale), cell(scale, 1, 1)])


def later_steps(records: Records) -> list[TrainJob]:
    return tuning.later(records, points(records.scale))


def _mean(kept: list[float], records: Records, one: Arm) -> str | None:
    """A dash if no run has reached the target, `None` if none is done."""
    done = len(found(records, one))
    if not kept:
        return "–" if done else None
    mean = f"{sum(kept) / len(kept):.4g}"
    return mean if len(kept) == done else f"{mean} ({len(kept)} of {done})"


TARGET_NOTE = (
    "The target is 91.2 % in the paper, 1.8 points below what one worker reaches; here it is as "
    "far below the mean of K = 1 (another network and other data: only ratios compare). Where "
    "some runs of an arm miss the target, its time is the mean of those that reach it, which "
    "flatters the arm; nothing is decided between two arms of which a run misses it."
)
POINTS_NOTE = (
    "The paper tunes the rate of each point; unless tuning was asked for, ours are scaled linearly "
    "with the global batch. Tuned rates are those of the best accuracy at the end, not of the "
    "fewest steps; K = 1 sets the target at its scaled rate."
)
STUDIES = (
    Study(TIME, lambda scale: jobs_of([*grid(scale).values()]), page_of_time),
    Study(STEPS, jobs_of_steps, page_of_steps, later_steps),
)
