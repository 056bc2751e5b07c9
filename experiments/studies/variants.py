"""Local and post-local SGD beside mini-batch SGD of the same effective batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from experiments import tuning
from experiments.arms import Arm, Row, arm, claim, jobs_of, published, table
from experiments.study import Claim, Page, Records, Scale, Study
from experiments.training import TrainJob

LABEL = "tab:local_sgd_variants_vs_mini_batch_sgd"
BLOCKS = ((16, 8), (4, 16))
"""Pairs of K and H, for the two halves of the table."""
TUNED = ("mini-batch", "huge")


def arms(scale: Scale, workers: int, local_steps: int) -> dict[str, Arm]:
    """One half, the most wanted first. The first, the growing and the post-local one share their
    first phase.
    """
    batch = scale.ground["batch"]
    wanted: dict[str, dict[str, Any]] = {
        "mini-batch": {"method": "mini-batch"},
        "post-local": {"method": "post-local", "local_steps": (local_steps,)},
        "local": {"method": "local", "local_steps": (local_steps,)},
        "huge": {"method": "mini-batch", "batch": batch * local_steps},
        "batch-growth": {"method": "batch-growth", "local_steps": (local_steps,)},
    }
    return {
        name: arm(scale, f"{name}, K = {workers}", main=True, workers=workers, **settings)
        for name, settings in wanted.items()
    }


def jobs(scale: Scale) -> list[TrainJob]:
    return jobs_of([one for block in BLOCKS for one in arms(scale, *block).values()])


def rows(records: Records) -> Iterator[Row]:
    """The rows in the order of the paper."""
    scale = records.scale
    unit = scale.ground["batch"]
    for workers, local_steps in reversed(BLOCKS):
        by = tuning.applied(records, arms(scale, workers, local_steps), TUNED)
        small, large = workers, workers * local_steps
        for name, method, first, second in (
            ("mini-batch", "mini-batch", small, small),
            ("huge", "mini-batch", large, large),
            ("batch-growth", "batch-growth", small, large),
            ("local", "local", large, large),
            ("post-local", "post-local", small, large),
        ):
            number = published(
                "variants",
                method=method,
                workers=workers,
                first_batch=first * 128,
                second_batch=second * 128,
            )
            effective = (
                f"{first * unit}" if first == second else f"{first * unit} → {second * unit}"
            )
            steps = 1 if method == "mini-batch" else local_steps
            yield Row((method, workers, steps, effective), by[name], (number,))


def claims(records: Records) -> Iterator[Claim]:
    for workers, local_steps in BLOCKS:
        by = tuning.applied(records, arms(records.scale, workers, local_steps), TUNED)
        with_k = f"K = {workers}, H = {local_steps}"
        yield claim(
            records,
            f"Local SGD is better than mini-batch SGD of the same effective batch ({with_k}).",
            "section 4.1",
            by["local"],
            by["huge"],
            paper_tunes=[by["huge"]],
            family="local",
        )
        yield claim(
            records,
            f"Post-local SGD is better than local SGD from the start with the same H ({with_k}).",
            "section 4.2",
            by["post-local"],
            by["local"],
            family="start",
        )
        yield claim(
            records,
            f"Post-local SGD is better than a batch that grows as much at the switch ({with_k}).",
            "section 4.2",
            by["post-local"],
            by["batch-growth"],
            family="start",
        )
        yield claim(
            records,
            f"Post-local SGD is better than {_base(by['mini-batch'])} ({with_k}).",
            "section 4.2",
            by["post-local"],
            by["mini-batch"],
            family="post-local",
        )


def _base(one: Arm) -> str:
    """Words for the base: post-local SGD continues from it, unless it has its own tuned rate."""
    return "tuned mini-batch SGD" if one.tuned else "mini-batch SGD that it goes on from"


def page(records: Records) -> Page:
    shown = table(
        "Local SGD, post-local SGD and mini-batch SGD by effective batch",
        ("method", "K", "H", "effective batch"),
        list(rows(records)),
        records,
    )
    return Page(
        tables=[shown],
        pictures=tuning.pictures(records, baselines(records.scale)),
        claims=list(claims(records)),
        notes=[
            "An arrow is the switch at the first decay. The paper tunes the rate of mini-batch "
            "SGD; unless tuning was asked for, all arms scale it linearly with the global batch.",
        ],
    )


def baselines(scale: Scale) -> list[Arm]:
    return [arms(scale, *block)[name] for block in BLOCKS for name in TUNED]


def later(records: Records) -> list[TrainJob]:
    return tuning.later(records, baselines(records.scale))


STUDY = Study(LABEL, jobs, page, later)
