"""Local and global momentum together, at H = 1."""

from __future__ import annotations

from typing import Any

from experiments.arms import Arm, Row, arm, claim, jobs_of, published, table, values
from experiments.pictures import lines
from experiments.study import Page, Records, Scale, Study

LABEL = "tab:train_cifar10_resnet20_mini_batch_averaging_compare_different_momentums"
GLOBAL = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
RATES: dict[str, dict[str, Any]] = {"paper": {"lr": 0.1, "lr_batch": 64}}
"""The paper's base batch is 64."""
Momenta = tuple[float, float]


def arms(scale: Scale) -> dict[Momenta, Arm]:
    """The arms by local and global momentum."""
    return {
        (inner, outer): arm(
            scale,
            f"{inner:g} / {outer:g}",
            light=True,
            method="block-momentum",
            workers=10,
            local_steps=(1,),
            momentum=inner,
            outer_momentum=outer,
            **RATES.get(scale.name, {}),
        )
        for inner, outer in ((0.0, 0.0), *((0.9, outer) for outer in GLOBAL))
    }


def page(records: Records) -> Page:
    by = arms(records.scale)
    rows = [
        Row(
            momenta,
            one,
            (published("momentum", local_momentum=momenta[0], global_momentum=momenta[1]),),
        )
        for momenta, one in by.items()
    ]
    plain = by[0.9, 0.0]
    claims = [
        claim(
            records,
            "Local momentum alone is better than none.",
            "appendix B.4.1",
            plain,
            by[0.0, 0.0],
            family="momentum",
        ),
        claim(
            records,
            "Global momentum of 0.3 beside the local one is better than the local one alone.",
            "appendix B.4.1",
            by[0.9, 0.3],
            plain,
            family="momentum",
        ),
        *(
            claim(
                records,
                f"Global momentum of {outer:g} beside the local one breaks training: it loses more "
                "than 5 points.",
                "appendix B.4.1",
                by[0.9, outer],
                plain,
                sign=-1,
                margin=-5.0,
                family="momentum",
            )
            for outer in (0.7, 0.9)
        ),
    ]
    picture = lines(
        "by-global",
        "Test accuracy by global momentum, beside a local one of 0.9",
        {
            "local 0.9": {
                outer: list(values(records, by[0.9, outer], "test_accuracy").values())
                for outer in GLOBAL
            }
        },
        jobs_of([*by.values()]),
        x_label="global momentum",
        y_label="test accuracy (%)",
        log_x=False,
    )
    shown = table("Local and global momentum", ("local", "global"), rows, records)
    return Page([shown], [picture], claims, NOTES)


NOTES = (
    "Two momenta at once are stable up to a limit that falls steeply between 0.5 and 0.7 of global "
    "momentum (docs/methods/momentum.md), which is where the paper's table breaks down.",
    "A perceptron in place of ResNet-20 at the small scale.",
)
STUDY = Study(LABEL, lambda scale: jobs_of([*arms(scale).values()]), page)
