"""Runs by K and H with B fixed: time and steps to an accuracy, and equal effective batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from experiments import clock
from experiments.arms import Arm, Row, arm, claim, found, jobs_of, of_differences, table, values
from experiments.pictures import boxes, lines
from experiments.registry import entry
from experiments.study import Claim, Page, Records, Scale, Study, Table
from experiments.training import TrainJob

TIME = "fig:localsgd_scaling_performance_time_to_test_accuracy"
BATCH = "fig:resnet20_cifar10_localsgd_vs_minibatchsgd_with_same_effective_batchsize"
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
    """By K and H; one worker is the same for every H."""
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
    """Modelled time to the target by seed, where it is reached."""
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
    """Paired over seeds that reach the target in both."""
    mine, theirs = times(records, one), times(records, base)
    return [theirs[seed] / mine[seed] for seed in mine if seed in theirs]


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
        rows.append([k, h, reached, _mean(over_one), _mean(over_plain), known.get((k, h), "")])
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
        ratios = speedups(records, by[k, h], by[other_k, other_h])
        yield of_differences(
            records,
            sentence,
            "section 4.1",
            [ratio - factor for ratio in ratios],
            f"speed-up of K = {k}, H = {h} over K = {other_k}, H = {other_h}, less {factor:g}",
            (*by[k, h].jobs, *by[other_k, other_h].jobs),
            unit="",
        )


def huge(scale: Scale) -> dict[tuple[int, int], Arm]:
    """Mini-batch SGD with B multiplied by H, up to the whole training set."""
    batch = scale.ground["batch"]
    most = scale.ground.get("train_samples") or 50_000
    return {
        (k, h): arm(
            scale, f"K = {k}, B x {h}", light=True, workers=k, method="mini-batch", batch=batch * h
        )
        for k in (16, 4)
        for h in LOCAL_STEPS[1:]
        if k * h * batch <= most
    }


def decreasing(scale: Scale) -> Arm:
    """H = 10, 5, 2, 1, each for a fifth of the run but the last (Wang and Joshi, 2019)."""
    epochs = {**scale.ground, **scale.light}["epochs"]
    return arm(
        scale,
        "H falls from 10",
        light=True,
        workers=4,
        method="decreasing",
        local_steps=(10,),
        adapt_every=epochs / 5,
    )


def jobs_of_batches(scale: Scale) -> list[TrainJob]:
    return jobs_of([*huge(scale).values(), decreasing(scale), *grid(scale).values()])


def page_of_batches(records: Records) -> Page:
    scale = records.scale
    by, larger, falling = grid(scale), huge(scale), decreasing(scale)
    known = {
        (row["method"], row["workers"], row["effective_batch"]): row["test_accuracy"]
        for row in entry("same-batch").values
    }
    rows = [
        Row(("mini-batch" if h == 1 else "local", k, h), one, (known.get(_key(k, h)),))
        for (k, h), one in by.items()
    ]
    rows += [
        Row((f"mini-batch, B x {h}", k, 1), one, (known.get(("mini-batch", k, 128 * k * h)),))
        for (k, h), one in larger.items()
    ]
    rows = [Row(row.cells, row.arm, tuple(p or "" for p in row.paper)) for row in rows]
    rows.append(Row(("local, H falls from 10", 4, "10 to 1"), falling, ("",)))
    claims = [
        claim(
            records,
            f"Local SGD with K = {k}, H = {h} is better than mini-batch SGD with {h} times the "
            "batch, at as many agreements.",
            "section 4.1",
            by[k, h],
            one,
        )
        for (k, h), one in larger.items()
    ]
    claims.append(
        claim(
            records,
            "With K = 4 a constant H = 16 is better than an H that falls from 10 (Wang and Joshi, "
            "2019), with fewer agreements.",
            "appendix C.5.4",
            by[4, 16],
            falling,
        )
    )
    pictures = [
        boxes(
            "local",
            "Test accuracy of local SGD by K, for every H",
            records,
            {f"H = {h}": {k: by[k, h] for k in WORKERS if (k, h) in by} for h in LOCAL_STEPS},
            x_label="K",
        ),
        boxes(
            "same-batch",
            "Local and mini-batch SGD of equal effective batch, K = 16",
            records,
            {
                "local SGD": {h: by[16, h] for h in LOCAL_STEPS[1:]},
                "mini-batch SGD": {h: one for (k, h), one in larger.items() if k == 16},
            },
            x_label="H, or how many times the batch",
        ),
    ]
    shown = table("By K and H, and at equal effective batches", ("method", "K", "H"), rows, records)
    return Page([shown], pictures, claims, BATCH_NOTES)


def _key(k: int, h: int) -> tuple[str, int, int]:
    return ("mini-batch" if h == 1 else "local", k, 128 * k * h)


def by_batch(scale: Scale) -> dict[int, dict[int, Arm]]:
    """By H, then by K; the global batch grows with K."""
    return {h: {k: cell(scale, k, h) for k in (2, 4, 8, 16, 32)} for h in (1, 2)}


def page_of_steps(records: Records) -> Page:
    by, goal = by_batch(records.scale), target(records)
    batch = records.scale.ground["batch"]
    rows = [
        [k, k * batch, h, f"{len(kept)} of {len(found(records, one))}", _mean(kept)]
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
    first, second = steps(records, by[1][32]), steps(records, by[2][32])
    largest = of_differences(
        records,
        "At the largest batch (K = 32), H = 2 needs no more local steps than mini-batch SGD, "
        "within a tenth.",
        "appendix B.3.3",
        [second[seed] / first[seed] - 1.1 for seed in second if seed in first],
        "steps of H = 2 over those of H = 1, less 1.1",
        (*by[1][32].jobs, *by[2][32].jobs),
        sign=-1,
        unit="",
    )
    return Page([shown], [picture], [largest], [TARGET_NOTE])


def jobs_of_steps(scale: Scale) -> list[TrainJob]:
    arms = [one for group in by_batch(scale).values() for one in group.values()]
    return jobs_of([*arms, cell(scale, 1, 1)])


def _mean(kept: list[float]) -> str | None:
    return f"{sum(kept) / len(kept):.4g}" if kept else None


TARGET_NOTE = (
    "The target is 91.2 % in the paper, 1.8 points below what one worker reaches; here it is as "
    "far below the mean of K = 1 (another network and other data: only ratios compare)."
)
BATCH_NOTES = (
    "A perceptron in place of ResNet-20 at the small scale. Nothing is tuned; the paper tunes the "
    "rate of mini-batch SGD in each setting.",
    "H falls as AdaComm's sequence would: halved after every fifth of the run. Wang and Joshi "
    "trained a ResNet-50, and the paper compares with their printed numbers alone.",
)
STUDIES = (
    Study(TIME, lambda scale: jobs_of([*grid(scale).values()]), page_of_time),
    Study(BATCH, jobs_of_batches, page_of_batches),
    Study(STEPS, jobs_of_steps, page_of_steps),
)
