"""Post-local SGD across three networks and two data sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from experiments import tuning
from experiments.arms import Arm, Row, arm, claim, jobs_of, published, table
from experiments.study import Claim, Page, Records, Scale, Study

LABEL = "tab:post_local_sgd_across_arch_and_tasks_accuracy"
NETS = ("resnet20", "densenet40-12", "wrn28-10")
TASKS = ("cifar10", "cifar100")
TUNED = ("small", "large")


@dataclass(frozen=True)
class Ground:
    """The replacement of a network of the paper at some scale.

    Args:
        net: the paper's.
        task: the paper's.
        settings: of `Run`.
    """

    net: str
    task: str
    settings: dict[str, Any]

    @property
    def words(self) -> str:
        return f"{self.settings['model']} on {self.settings['task']}"


SUBSET: dict[str, Any] = {
    "train_samples": 2500,
    "batch": 8,
    "epochs": 8.0,
    "lr": 0.2,
    "lr_batch": 128,
    "evaluate_every": 8.0,
}
"""Settings of CIFAR at the small scale: 156 steps with K = 16, half in the second phase."""
SMALL = {"resnet20": "resnet8", "densenet40-12": "densenet10-8", "wrn28-10": "wrn10-1"}
SMOKE = {"resnet20": "mlp", "densenet40-12": "mlp-32", "wrn28-10": "small-cnn-2"}
OF_NET: dict[str, dict[str, Any]] = {
    "resnet20": {},
    "densenet40-12": {},
    "wrn28-10": {"lr": 0.1, "weight_decay": 5e-4},
}
"""Rates and weight decay as in the paper; WideResNets are also trained for 250 epochs there."""


def ground(scale: Scale, net: str, task: str) -> Ground:
    """The paper's network and data, or their replacements."""
    if scale.name == "smoke":
        return Ground(net, task, {"model": SMOKE[net], "task": scale.ground["task"]})
    if scale.name == "small":
        return Ground(net, task, {**SUBSET, **OF_NET[net], "model": SMALL[net], "task": task})
    epochs = {"epochs": 250.0} if net == "wrn28-10" else {}
    return Ground(net, task, {**OF_NET[net], **epochs, "model": net, "task": task})


def grounds(scale: Scale) -> list[Ground]:
    """All networks and data; at the smallest scale one data set replaces both."""
    tasks = TASKS[:1] if scale.name == "smoke" else TASKS
    return [ground(scale, net, task) for task in tasks for net in NETS]


def arms(scale: Scale, of: Ground, workers: int, steps: tuple[int, ...]) -> dict[str, Arm]:
    """Mini-batch SGD with K = 2 and with many workers, then post-local SGD by H."""
    wanted: dict[str, dict[str, Any]] = {
        "large": {"method": "mini-batch", "workers": workers},
        **{
            f"H = {h}": {"method": "post-local", "workers": workers, "local_steps": (h,)}
            for h in steps
        },
        "small": {"method": "mini-batch", "workers": 2},
    }
    return {
        name: arm(scale, f"{name}, {of.words}", **{**of.settings, **settings})
        for name, settings in wanted.items()
    }


def of_nets(scale: Scale) -> list[tuple[Ground, dict[str, Arm]]]:
    return [(of, arms(scale, of, 16, (16, 32))) for of in grounds(scale)]


def baselines(scale: Scale) -> list[Arm]:
    return [by[name] for _, by in of_nets(scale) for name in TUNED]


def _found(records: Records) -> list[tuple[Ground, dict[str, Arm]]]:
    """The arms, baselines with the rates that were found."""
    return [(of, tuning.applied(records, by, TUNED)) for of, by in of_nets(records.scale)]


def _rows(records: Records) -> Iterator[Row]:
    for of, by in _found(records):
        for name, workers, h in (
            ("small", 2, 1),
            ("large", 16, 1),
            ("H = 16", 16, 16),
            ("H = 32", 16, 32),
        ):
            method = "mini-batch" if h == 1 else "post-local"
            number = published("nets", model=of.net, task=of.task, workers=workers, local_steps=h)
            yield Row((of.words, method, workers, h), by[name], (f"{of.net}, {of.task}", number))


def gap_claims(
    records: Records, of: Ground, by: dict[str, Arm], place: str, steps: tuple[int, ...]
) -> Iterator[Claim]:
    """The gap of the large batch, and whether post-local SGD closes it."""
    yield claim(
        records,
        f"A large batch ends below a small one ({of.words}).",
        place,
        by["small"],
        by["large"],
        paper_tunes=[by[name] for name in TUNED],
        family="gap",
    )
    for h in steps:
        yield claim(
            records,
            f"Post-local SGD with H = {h} is better than the large batch ({of.words}).",
            place,
            by[f"H = {h}"],
            by["large"],
            family="post-local",
        )


def page(records: Records) -> Page:
    shown = table(
        "Three networks, two data sets",
        ("network, data", "method", "K", "H"),
        list(_rows(records)),
        records,
        paper=("in the paper", "test acc."),
    )
    claims = [
        found
        for of, by in _found(records)
        for found in gap_claims(records, of, by, "section 4.2", (16, 32))
    ]
    grids = tuning.pictures(records, baselines(records.scale))
    return Page(tables=[shown], pictures=grids, claims=claims, notes=NOTES)


NOTES = (
    "Networks of reduced depth and width stand for the paper's, on 2,500 training images (all test "
    "images) with B = 8 for 8 epochs at the small scale, with the paper's crops and flips and its "
    "rates per sample; far from the end of what such networks can learn.",
    "The paper tunes both baselines; here nothing is tuned unless it was asked for.",
)
STUDY = Study(
    LABEL,
    lambda scale: jobs_of([one for _, by in of_nets(scale) for one in by.values()]),
    page,
    lambda records: tuning.later(records, baselines(records.scale)),
)
