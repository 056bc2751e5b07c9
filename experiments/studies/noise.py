"""Isotropic noise on gradients (Neelakantan et al., 2015) in place of local steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments import tuning
from experiments.arms import Arm, Row, arm, claim, found, jobs_of, published, table, values
from experiments.study import Cell, Page, Records, Scale, Study
from experiments.training import TrainJob

LABEL = "tab:isotropic_noise_for_large_batch_training"
STRENGTHS = (1e-6, 5e-6, 1e-5, 5e-5)
DECAYS = {"smoke": (0.5,), "small": (0.5,), "paper": (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)}
"""Values of γ'; the weakest decay leaves the most noise."""
Setting = tuple[float, float]


def grounds(scale: Scale) -> list[tuple[str, dict[str, Any], int]]:
    """The paper's task, our settings, H of post-local SGD."""
    if scale.name != "paper":
        return [("cifar10", {}, 32)]
    return [
        ("cifar10", {"task": "cifar10"}, 32),
        ("cifar100", {"task": "cifar100", "workers": 32}, 8),
    ]


def baselines(scale: Scale, settings: dict[str, Any], steps: int) -> dict[str, Arm]:
    """Mini-batch and post-local SGD, as in the other tables."""
    main = scale.name != "paper"
    return {
        "mini-batch": arm(scale, "mini-batch", main=main, method="mini-batch", **settings),
        "post-local": arm(
            scale,
            f"post-local, H = {steps}",
            main=main,
            method="post-local",
            local_steps=(steps,),
            **settings,
        ),
    }


def noisy(scale: Scale, settings: dict[str, Any]) -> dict[Setting, Arm]:
    return {
        (eta, gamma): arm(
            scale,
            f"noise {eta:g} / (1 + t)^{gamma:g}",
            method="mini-batch",
            noise=eta,
            noise_decay=gamma,
            **settings,
        )
        for eta in STRENGTHS
        for gamma in DECAYS[scale.name]
    }


def best(records: Records, by: dict[Setting, Arm]) -> Setting | None:
    """The one with the best mean test accuracy, as the paper chooses it, of those that all seeds
    got through; `None` while any run is missing, as it might be the best.
    """
    if any(len(found(records, one)) < len(one.jobs) for one in by.values()):
        return None
    accuracies = {setting: values(records, one, "test_accuracy") for setting, one in by.items()}
    means = {
        setting: sum(kept.values()) / len(kept)
        for setting, kept in accuracies.items()
        if len(kept) == len(by[setting].jobs)
    }
    return max(means, key=means.__getitem__, default=None)


def _others(by: dict[Setting, Arm], chosen: Arm) -> list[TrainJob]:
    """The jobs of arms that were not chosen, and might have been."""
    return [job for job in jobs_of([*by.values()]) if job not in chosen.jobs]


def jobs(scale: Scale) -> list[TrainJob]:
    arms: list[Arm] = []
    for _, settings, steps in grounds(scale):
        arms += [*baselines(scale, settings, steps).values(), *noisy(scale, settings).values()]
    return jobs_of(arms)


def starred(records: Records) -> list[Arm]:
    """What the paper marks as tuned: mini-batch SGD, and the noise of the best score once it is
    known.
    """
    arms = []
    for _, settings, steps in grounds(records.scale):
        by = noisy(records.scale, settings)
        favourite = best(records, by)
        arms.append(baselines(records.scale, settings, steps)["mini-batch"])
        arms += [] if favourite is None else [by[favourite]]
    return arms


def page(records: Records) -> Page:
    tables, claims = [], []
    for task, settings, steps in grounds(records.scale):
        given = noisy(records.scale, settings)
        favourite = best(records, given)
        by = tuning.applied(records, given, [] if favourite is None else [favourite])
        chosen = replace(next(iter(given.values())), name="the best noise")
        chosen = chosen if favourite is None else by[favourite]
        others = _others(given, chosen)
        base = tuning.applied(records, baselines(records.scale, settings, steps), ["mini-batch"])
        # Without tuning the two have one rate, as noise is all that they differ by.
        tuned = [chosen, base["mini-batch"]] if records.scale.tunes else []
        numbers: dict[str, Cell] = {
            method: published("noise", task=task, method=method)
            for method in ("noise", "mini-batch", "post-local")
        }
        rows = [Row((name,), one, (numbers[name],)) for name, one in base.items()]
        rows += [
            Row((one.name,), one, (numbers["noise"] if setting == favourite else "",))
            for setting, one in by.items()
        ]
        tables.append(
            table(f"Noise on gradients ({task} in the paper)", ("method",), rows, records)
        )
        claims += [
            claim(
                records,
                "Noise is no better than mini-batch SGD, within 0.5 points, at the noise of the "
                f"best test score ({task} in the paper).",
                "appendix C.5.4",
                chosen,
                base["mini-batch"],
                sign=-1,
                margin=0.5,
                paper_tunes=tuned,
                beside=others,
                family="noise",
            ),
            claim(
                records,
                f"Post-local SGD is better than noise ({task} in the paper).",
                "appendix C.5.4",
                base["post-local"],
                chosen,
                paper_tunes=tuned[:1],
                beside=others,
                family="noise",
            ),
        ]
    grids = tuning.pictures(records, starred(records))
    return Page(tables=tables, pictures=grids, claims=claims, notes=NOTES)


def later(records: Records) -> list[TrainJob]:
    return tuning.later(records, starred(records))


NOTES = (
    "As in the paper the noise is chosen by the test score, which favours it. The paper's number "
    "stands beside the chosen row.",
    "At the small scale γ' is 0.5 alone, which leaves the most noise.",
    "The paper tunes the rates of mini-batch SGD and of noise; unless tuning was asked for, all "
    "are scaled linearly with the global batch. A noise is chosen at the scaled rate, and then "
    "tuned; post-local SGD keeps the scaled one.",
)
STUDY = Study(LABEL, jobs, page, later)
