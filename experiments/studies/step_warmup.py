"""Warm-up of H: over H epochs, and over up to 50, in three shapes."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.arms import Arm, Row, arm, claim, jobs_of, table
from experiments.pictures import learning_curves
from experiments.study import Claim, Page, Records, Scale, Study
from experiments.training import TrainJob

SHORT = "fig:cifar10_resnet20_investigate_warmup"
LONG = "fig:cifar10_resnet20_investigate_warmup_longer"
SHAPES = ("constant", "linear", "exponential")
PERIODS = (5, 10, 20, 30, 50)
"""Epochs of the paper's 300; the paper names none but 50."""
PAPER_EPOCHS = 300


def _arm(scale: Scale, local_steps: int, shape: str, period: float) -> Arm:
    """A warm-up over so many of 300 epochs, at the scale's length of a run; `none` for no shape."""
    if shape == "none":
        return arm(
            scale,
            f"H = {local_steps}, none",
            light=True,
            method="local",
            local_steps=(local_steps,),
        )
    epochs = {**scale.ground, **scale.light}["epochs"]
    return arm(
        scale,
        f"H = {local_steps}, {shape}, {period:g} of 300 epochs",
        light=True,
        method="local-warmup",
        local_steps=(local_steps,),
        step_warmup=round(period * epochs / PAPER_EPOCHS, 4),
        step_warmup_shape=shape,
    )


def short(scale: Scale) -> dict[tuple[int, str], Arm]:
    """The arms by H and shape; the period is H epochs."""
    return {(h, s): _arm(scale, h, s, h) for h in (8, 16) for s in ("none", "linear", "constant")}


def longer(scale: Scale) -> dict[tuple[str, int], Arm]:
    """The arms with H = 16, by shape and period."""
    return {(s, p): _arm(scale, 16, s, p) for s in SHAPES for p in PERIODS}


def page_of_short(records: Records) -> Page:
    by = short(records.scale)
    rows = [Row((h, shape), one) for (h, shape), one in by.items()]
    pictures = [
        learning_curves(
            f"h-{h}",
            f"Training loss and test accuracy, H = {h}, by warm-up",
            records,
            [one for (steps, _), one in by.items() if steps == h],
        )
        for h in (8, 16)
    ]
    claims = [
        _no_better(records, f"{shape} over H epochs, H = {h}", by[h, shape], by[h, "none"])
        for h in (8, 16)
        for shape in ("linear", "constant")
    ]
    shown = table("Warm-up of H over H epochs", ("H", "warm-up"), rows, records, paper=())
    return Page([shown], pictures, claims, NOTES)


def page_of_longer(records: Records) -> Page:
    by, none = longer(records.scale), _arm(records.scale, 16, "none", 0)
    rows = [Row(("none", 0), none), *(Row(setting, one) for setting, one in by.items())]
    pictures = [
        learning_curves(
            shape,
            f"Training loss and test accuracy, H = 16, {shape} warm-up over several periods",
            records,
            [none, *(by[shape, period] for period in PERIODS)],
        )
        for shape in SHAPES
    ]
    shown = table(
        "Warm-up of H to 16, by its period in 300 epochs",
        ("warm-up", "epochs"),
        rows,
        records,
        paper=(),
    )
    return Page([shown], pictures, list(_longest(records, by, none)), NOTES)


def _longest(records: Records, by: dict[tuple[str, int], Arm], none: Arm) -> Iterator[Claim]:
    for shape in SHAPES:
        yield _no_better(records, f"{shape} over 50 epochs, H = 16", by[shape, 50], none)


def _no_better(records: Records, words: str, warmed: Arm, none: Arm) -> Claim:
    return claim(
        records,
        f"Warm-up of H does not help: it is no better than none, within 0.5 points ({words}).",
        "appendix B.4.2",
        warmed,
        none,
        sign=-1,
        margin=0.5,
        family="step-warmup",
    )


def _jobs_of_longer(scale: Scale) -> list[TrainJob]:
    return jobs_of([*longer(scale).values(), _arm(scale, 16, "none", 0)])


NOTES = (
    "The paper gives curves alone and calls none of them convincing; a margin of 0.5 points is "
    "ours. A period has the same share of the run as in the paper.",
    "A perceptron in place of ResNet-20 at the small scale.",
)
STUDIES = (
    Study(SHORT, lambda scale: jobs_of([*short(scale).values()]), page_of_short),
    Study(LONG, _jobs_of_longer, page_of_longer),
)
