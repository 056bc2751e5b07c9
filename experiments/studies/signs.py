"""Post-local SGD with compressed updates: signSGD and EF-signSGD by H."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from experiments import tuning
from experiments.arms import Arm, Row, arm, claim, jobs_of, published, table
from experiments.study import Claim, Page, Records, Scale, Study
from experiments.training import TrainJob

LABEL = "tab:improve_sign_sgd"
LOCAL_STEPS = (1, 16, 32, 64)
SIGN_RATE = {"smoke": 1e-3, "small": 1e-3, "paper": 0.01}
"""Learning rates of steps along signs; at the paper's scale it is the released code's."""


def tasks_of(scale: Scale) -> tuple[str, ...]:
    """The paper's two data sets, or the one of the scale."""
    return ("cifar10", "cifar100") if scale.name == "paper" else (scale.ground["task"],)


def settings(scale: Scale, method: str) -> dict[str, Any]:
    """signSGD steps along signs, at a rate that is neither scaled nor warmed up; EF-signSGD takes
    the local steps of SGD.
    """
    if method == "ef-sign":
        return {}
    rate = SIGN_RATE[scale.name]
    return {"optimizer": "sign", "lr": rate, "lr_scaling": "none", "lr_warmup": 0.0}


def arms(scale: Scale, task: str, method: str) -> dict[int, Arm]:
    """The arms by H; all continue from the same workers at the switch."""
    return {
        h: arm(
            scale,
            f"{method}, H = {h}",
            task=task,
            method=method,
            local_steps=(h,),
            **settings(scale, method),
        )
        for h in LOCAL_STEPS
    }


def grid(scale: Scale) -> Iterator[tuple[str, str, dict[int, Arm]]]:
    for task in tasks_of(scale):
        for method in ("sign", "ef-sign"):
            yield task, method, arms(scale, task, method)


def jobs(scale: Scale) -> list[TrainJob]:
    return jobs_of([one for _, _, by in grid(scale) for one in by.values()])


def rated(records: Records) -> Iterator[tuple[str, str, dict[int, Arm]]]:
    """The arms of the grid, each method with the rate that was found at H = 1."""
    for task, method, by in grid(records.scale):
        yield task, method, tuning.taken_over(records, by, 1)


def _claims(records: Records) -> Iterator[Claim]:
    for task, method, by in rated(records):
        for h in LOCAL_STEPS[1:]:
            yield claim(
                records,
                f"Post-local {method} with H = {h} is better than with H = 1 ({task}).",
                "section 4.2",
                by[h],
                by[1],
                family="signs",
            )
    plain = {(task, method): by[1] for task, method, by in rated(records)}
    for task in tasks_of(records.scale):
        feedback, signs = plain[task, "ef-sign"], plain[task, "sign"]
        yield claim(
            records,
            f"With H = 1 error feedback is better than signs alone ({task}).",
            "section 4.2",
            feedback,
            signs,
            paper_tunes=[feedback, signs],
            family="signs",
        )


def page(records: Records) -> Page:
    scale = records.scale
    rows = [
        Row(
            (task, method, h),
            one,
            tuple(
                published("signs", task=of, method=method, local_steps=h)
                for of in ((task,) if scale.name == "paper" else ("cifar10", "cifar100"))
            ),
        )
        for task, method, by in rated(records)
        for h, one in by.items()
    ]
    paper = ("paper",) if scale.name == "paper" else ("paper: CIFAR-10", "paper: CIFAR-100")
    shown = table(
        "Signs of updates, by H of the second phase",
        ("task", "method", "H"),
        rows,
        records,
        paper=paper,
    )
    return Page(
        tables=[shown],
        pictures=tuning.pictures(records, baselines(scale)),
        claims=list(_claims(records)),
        notes=[
            "Updates are compressed in the first phase too, as in Algorithms 3 and 4; a scale for "
            "each tensor. sign also steps locally along signs (Algorithm 3).",
            "The paper tunes the rate at H = 1 for each method, and larger H take it over; unless "
            "tuning was asked for, it is fixed beforehand here.",
        ],
    )


def baselines(scale: Scale) -> list[Arm]:
    return [by[1] for _, _, by in grid(scale)]


def later(records: Records) -> list[TrainJob]:
    """Later jobs: grids at H = 1, then all H with the rates that were found."""
    found = [one for _, _, by in rated(records) for one in by.values() if one.tuned]
    return [*tuning.later(records, baselines(records.scale)), *jobs_of(found)]


STUDY = Study(LABEL, jobs, page, later)
