"""Post-local SGD from the first or from the second decay, by H."""

from __future__ import annotations

from experiments.arms import Arm, Row, arm, claim, jobs_of, table
from experiments.pictures import boxes
from experiments.study import Page, Records, Scale, Study
from experiments.training import TrainJob

LABEL = "fig:cifar10_resnet20_post_local_sgd_from_different_phase_wrt_H"
LOCAL_STEPS = (2, 4, 8, 16, 32)
SWITCHES = {"first decay": "first-decay", "second decay": "fraction:0.75"}


def arms(scale: Scale) -> dict[str, dict[int, Arm]]:
    """The arms by switch, then by H.

    Those of the second decay continue from the workers at the first one.
    """
    return {
        name: {
            h: arm(
                scale,
                f"H = {h} from the {name}",
                main=switch == "first-decay",
                method="post-local",
                local_steps=(h,),
                switch=switch,
            )
            for h in LOCAL_STEPS
        }
        for name, switch in SWITCHES.items()
    }


def jobs(scale: Scale) -> list[TrainJob]:
    return jobs_of([one for by in arms(scale).values() for one in by.values()])


def page(records: Records) -> Page:
    by = arms(records.scale)
    first, second = by["first decay"], by["second decay"]
    rows = [Row((name, h), one) for name, group in by.items() for h, one in group.items()]
    return Page(
        tables=[table("When local steps begin", ("from the", "H"), rows, records, paper=())],
        pictures=[
            boxes(
                "by-h",
                "Test accuracy by H, from the first and second decay",
                records,
                by,
                x_label="H",
            )
        ],
        claims=[
            claim(
                records,
                f"With H = {h} it is better to begin at the first decay than at the second.",
                "appendix C.2",
                first[h],
                second[h],
                family="start",
            )
            for h in LOCAL_STEPS
        ],
        notes=["The paper gives no numbers beside this picture."],
    )


STUDY = Study(LABEL, jobs, page)
