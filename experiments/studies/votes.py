"""The mean of signs beside their majority vote, at H = 1."""

from __future__ import annotations

from experiments.arms import NEVER_TUNED, Arm, Row, arm, claim, jobs_of, published, table
from experiments.studies import signs
from experiments.study import Page, Records, Scale, Study
from experiments.training import TrainJob

LABEL = "tab:understand_sign_sgd"
COMPRESSION = {"mean": None, "majority": "majority"}


def arms(scale: Scale, task: str) -> dict[str, Arm]:
    """The mean is the first arm of the table of signs."""
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


def jobs(scale: Scale) -> list[TrainJob]:
    return jobs_of([one for task in signs.tasks_of(scale) for one in arms(scale, task).values()])


def page(records: Records) -> Page:
    scale = records.scale
    by_task = {task: arms(scale, task) for task in signs.tasks_of(scale)}
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
            f"A majority vote is {words} the mean of signs, within 0.5 points ({task}).",
            "appendix C.5.5",
            by["majority"],
            by["mean"],
            sign=sign,
            margin=0.5,
            paper_tunes=[by["majority"], by["mean"]],
        )
        for task, by in by_task.items()
        for words, sign in (("no worse than", 1), ("no better than", -1))
    ]
    return Page(
        tables=[table("Mean and vote, H = 1", ("task", "of signs"), rows, records)],
        claims=claims,
        notes=[
            "A vote is scaled by the mean of the workers' scales, so that models keep the size of "
            "their steps; a tie moves nothing.",
            NEVER_TUNED,
        ],
    )


STUDY = Study(LABEL, jobs, page)
