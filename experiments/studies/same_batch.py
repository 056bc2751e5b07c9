"""Local SGD beside mini-batch SGD of the same effective batch, by K and H; and an H that falls."""

from __future__ import annotations

from experiments import tuning
from experiments.arms import Arm, Row, arm, claim, jobs_of, table
from experiments.pictures import boxes
from experiments.registry import entry
from experiments.studies.grids import LOCAL_STEPS, WORKERS, grid
from experiments.study import Page, Records, Scale, Study
from experiments.training import TrainJob

LABEL = "fig:resnet20_cifar10_localsgd_vs_minibatchsgd_with_same_effective_batchsize"


def huge(scale: Scale) -> dict[tuple[int, int], Arm]:
    """Mini-batch SGD with B multiplied by H, up to the whole training set."""
    batch = scale.ground["batch"]
    most = scale.ground.get("train_samples") or 50_000
    return {
        (k, h): arm(
            scale, f"K = {k}, B x {h}", light=True, workers=k, method="mini-batch", batch=batch * h
        )
        for k in (16, 4)
        for h in LOCAL_STEPS[1:]
        if k * h * batch <= most
    }


def decreasing(scale: Scale) -> Arm:
    """H = 10, 5, 2, 1, each for a fifth of the run but the last (Wang and Joshi, 2019)."""
    epochs = {**scale.ground, **scale.light}["epochs"]
    return arm(
        scale,
        "H falls from 10",
        light=True,
        workers=4,
        method="decreasing",
        local_steps=(10,),
        adapt_every=epochs / 5,
    )


def jobs(scale: Scale) -> list[TrainJob]:
    return jobs_of([*huge(scale).values(), decreasing(scale), *grid(scale).values()])


def page(records: Records) -> Page:
    scale = records.scale
    by, falling = grid(scale), decreasing(scale)
    larger = tuning.applied(records, huge(scale), huge(scale))
    known = {
        (row["method"], row["workers"], row["effective_batch"]): row["test_accuracy"]
        for row in entry("same-batch").values
    }
    rows = [
        Row(("mini-batch" if h == 1 else "local", k, h), one, (known.get(_key(k, h)),))
        for (k, h), one in by.items()
    ]
    rows += [
        Row((f"mini-batch, B x {h}", k, 1), one, (known.get(("mini-batch", k, 128 * k * h)),))
        for (k, h), one in larger.items()
    ]
    rows = [Row(row.cells, row.arm, tuple(p or "" for p in row.paper)) for row in rows]
    rows.append(Row(("local, H falls from 10", 4, "10 to 1"), falling, ("",)))
    claims = [
        claim(
            records,
            f"Local SGD with K = {k}, H = {h} is better than mini-batch SGD with {h} times the "
            "batch, at as many syncs.",
            "section 4.1",
            by[k, h],
            one,
            paper_tunes=[one],
            family="local",
        )
        for (k, h), one in larger.items()
    ]
    claims.append(
        claim(
            records,
            "With K = 4 a constant H = 16 is better than an H that falls from 10 (Wang and Joshi, "
            "2019), with fewer syncs.",
            "appendix C.5.4",
            by[4, 16],
            falling,
            family="local",
        )
    )
    pictures = [
        boxes(
            "local",
            "Test accuracy of local SGD by K, for every H",
            records,
            {f"H = {h}": {k: by[k, h] for k in WORKERS if (k, h) in by} for h in LOCAL_STEPS},
            x_label="K",
        ),
        boxes(
            "same-batch",
            "Local and mini-batch SGD of equal effective batch, K = 16",
            records,
            {
                "local SGD": {h: by[16, h] for h in LOCAL_STEPS[1:]},
                "mini-batch SGD": {h: one for (k, h), one in larger.items() if k == 16},
            },
            x_label="H, or how many times the batch",
        ),
    ]
    shown = table("By K and H, and at equal effective batches", ("method", "K", "H"), rows, records)
    return Page([shown], pictures, claims, NOTES)


def _key(k: int, h: int) -> tuple[str, int, int]:
    return ("mini-batch" if h == 1 else "local", k, 128 * k * h)


NOTES = (
    "A perceptron in place of ResNet-20 at the small scale. The paper tunes the rate of mini-batch "
    "SGD in each setting; here that of the larger batches alone, where tuning was asked for.",
    "H falls as AdaComm's sequence would: halved after every fifth of the run. Wang and Joshi "
    "trained a ResNet-50, and the paper compares with their printed numbers alone.",
)
STUDY = Study(
    LABEL, jobs, page, lambda records: tuning.later(records, huge(records.scale).values())
)
