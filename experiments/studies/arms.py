"""Five ways to train (A1 to A5): small, large and huge batches, local and post-local SGD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments import tuning
from experiments.arms import Arm, Row, arm, claim, jobs_of, published, table
from experiments.pictures import learning_curves
from experiments.studies import headline
from experiments.study import Job, Page, Records, Scale, Study
from experiments.training import TrainJob

LABEL = "fig:cifar10_resnet20_learning_curve_post_local_sgd_vs_mini_batch_sgd"
WORDS = {
    "A1": "mini-batch, K = 1",
    "A2": "mini-batch, K = 16",
    "A3": "mini-batch, K = 16, batch x 4",
    "A4": "local, K = 16, H = 4",
    "A5": "post-local, K = 16, H = 16",
}
TUNED = ("A1", "A2", "A3")


def arms(scale: Scale) -> dict[str, Arm]:
    """The arms, the most important first: A5 continues from the workers of A2."""
    batch = scale.ground["batch"]
    settings: dict[str, dict[str, Any]] = {
        "A2": {"method": "mini-batch"},
        "A5": {"method": "post-local", "local_steps": (16,)},
        "A1": {"method": "mini-batch", "workers": 1},
        "A4": {"method": "local", "local_steps": (4,)},
        "A3": {"method": "mini-batch", "batch": 4 * batch},
    }
    return {name: arm(scale, name, main=True, **chosen) for name, chosen in settings.items()}


def baselines(scale: Scale) -> list[Arm]:
    by = arms(scale)
    return [by[name] for name in TUNED]


def page(records: Records) -> Page:
    """The page; at the medium scale that of `headline`, which has its own design."""
    if records.scale.name == "medium":
        return headline.page(records)
    by = tuning.applied(records, arms(records.scale), TUNED)
    rows = [
        Row(
            (name, words),
            by[name],
            (
                published("arms", arm=name),
                published("arms", "train_accuracy", arm=name),
                published("arms", "communication", arm=name),
            ),
        )
        for name, words in WORDS.items()
    ]
    shown = table(
        "Five ways to train",
        ("arm", "setting"),
        rows,
        records,
        paper=("paper: test acc.", "paper: train acc.", "paper: rounds relative to A2, 2nd phase"),
    )
    return Page(
        tables=[shown],
        pictures=[
            learning_curves(
                "curves",
                "Training loss and test accuracy of A1 to A5",
                records,
                [by[name] for name in WORDS],
            ),
            *tuning.pictures(records, baselines(records.scale)),
        ],
        claims=[
            claim(
                records,
                "A large batch (A2) ends at a lower test accuracy than a small one (A1).",
                "section 1",
                by["A1"],
                by["A2"],
                paper_tunes=[by["A1"], by["A2"]],
                family="gap",
            ),
            claim(
                records,
                "Local SGD (A4) is better than mini-batch SGD with the same effective batch and "
                "the same number of rounds (A3).",
                "section 4.1",
                by["A4"],
                by["A3"],
                paper_tunes=[by["A3"]],
                family="local",
            ),
            claim(
                records,
                "Post-local SGD (A5) ends at a higher test accuracy than the large batch (A2) "
                f"{_origin(by['A2'])}.",
                "section 4.2",
                by["A5"],
                by["A2"],
                family="post-local",
            ),
            claim(
                records,
                "Local SGD from the start (A4) fits the training data less well than mini-batch "
                "SGD of the same K (A2).",
                "section 1",
                by["A4"],
                by["A2"],
                sign=-1,
                field="train_accuracy",
                family="fit",
            ),
        ],
        notes=[
            "The paper tunes the rates of A1 to A3; unless tuning was asked for, all are scaled "
            "linearly with the global batch, as those of A4 and A5 always are.",
            "All numbers are of the averaged model at the end of training; the paper's released "
            "code reports the mean of the workers' own models at their best epoch.",
            "A5 goes on from the very workers of A2 at the first decay, so that the two are paired "
            "sample by sample until then, unless A2 has a tuned rate of its own.",
        ],
    )


def _origin(one: Arm) -> str:
    """Words for A2: A5 continues from its run, unless A2 has its own tuned rate."""
    return "at its tuned rate" if one.tuned else "that it goes on from"


def jobs(scale: Scale) -> list[TrainJob]:
    return headline.jobs(scale) if scale.name == "medium" else jobs_of([*arms(scale).values()])


def whole(records: Records) -> Sequence[Job]:
    scale = records.scale
    return headline.whole(records) if scale.name == "medium" else jobs(scale)


def later(records: Records) -> Sequence[Job]:
    if records.scale.name == "medium":
        return headline.later(records)
    return tuning.later(records, baselines(records.scale))


STUDY = Study(
    LABEL,
    jobs,
    page,
    later,
    scales=("smoke", "small", "medium", "paper"),
    whole=whole,
    designed=("medium",),
)
