"""The mean of signs beside their majority vote, at H = 1."""

from __future__ import annotations

from experiments import tuning
from experiments.arms import Arm, Row, arm, claim, jobs_of, published, table
from experiments.studies import signs
from experiments.study import Page, Records, Scale, Study
from experiments.training import TrainJob

LABEL = "tab:understand_sign_sgd"
COMPRESSION = {"mean": None, "majority": "majority"}


def arms(scale: Scale, task: str) -> dict[str, Arm]:
    """The arms; the mean is the first arm of the table of signs."""
    return {
        name: arm(
            scale,
            f"{name} of signs",
            task=task,
            method="sign",
            local_steps=(1,),
            compression=compression,
            **signs.settings(scale, "sign"),
        )
        for name, compression in COMPRESSION.items()
    }


def baselines(scale: Scale) -> list[Arm]:
    """All arms, since the paper tunes both as baselines."""
    return [one for task in signs.tasks_of(scale) for one in arms(scale, task).values()]


def jobs(scale: Scale) -> list[TrainJob]:
    return jobs_of(baselines(scale))


def page(records: Records) -> Page:
    scale = records.scale
    by_task = {
        task: tuning.applied(records, arms(scale, task), COMPRESSION)
        for task in signs.tasks_of(scale)
    }
    rows = [
        Row(
            (task, name),
            one,
            (published("votes", task=task if scale.name == "paper" else "cifar10", method=name),),
        )
        for task, by in by_task.items()
        for name, one in by.items()
    ]
    claims = [
        claim(
            records,
            f"A majority vote is as good as the mean of signs, within 0.5 points ({task}).",
            "appendix C.5.5",
            by["majority"],
            by["mean"],
            equal_within=0.5,
            paper_tunes=[by["majority"], by["mean"]],
            family="signs",
        )
        for task, by in by_task.items()
    ]
    return Page(
        tables=[table("Mean and vote, H = 1", ("task", "of signs"), rows, records)],
        pictures=tuning.pictures(records, baselines(scale)),
        claims=claims,
        notes=[
            "A vote is scaled by the mean of the workers' scales, so that models keep the size of "
            "their steps; a tie moves nothing.",
            "The paper tunes the rate of both; unless tuning was asked for, it is fixed beforehand "
            "here and the same for both.",
        ],
    )


def later(records: Records) -> list[TrainJob]:
    return tuning.later(records, baselines(records.scale))


STUDY = Study(LABEL, jobs, page, later)
