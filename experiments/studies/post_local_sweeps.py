"""Post-local SGD by H at K = 16, and by K at H = 16 and 32."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.arms import Arm, Row, arm, claim, jobs_of, table
from experiments.pictures import boxes
from experiments.study import Claim, Page, Records, Scale, Study
from experiments.training import TrainJob

LABEL = "fig:post_local_sgd_for_resnet20_cifar10"
LOCAL_STEPS = (1, 2, 4, 8, 16, 32)
WORKERS = (2, 4, 8, 16)
FROM_START = 16
"""H of local SGD from the start, beside post-local SGD with the same H."""


def _arm(scale: Scale, workers: int, local_steps: int, *, main: bool) -> Arm:
    name = f"K = {workers}, H = {local_steps}"
    if local_steps == 1:
        return arm(scale, name, main=main, workers=workers, method="mini-batch")
    return arm(
        scale, name, main=main, workers=workers, method="post-local", local_steps=(local_steps,)
    )


def by_steps(scale: Scale) -> dict[int, Arm]:
    """The arms of (a) by H, at K = 16."""
    return {h: _arm(scale, 16, h, main=True) for h in LOCAL_STEPS}


def by_workers(scale: Scale) -> dict[int, dict[int, Arm]]:
    """The arms of (b) by H, then by K."""
    return {h: {k: _arm(scale, k, h, main=k == 16) for k in WORKERS} for h in (1, 16, 32)}


def from_start(scale: Scale) -> Arm:
    return arm(scale, "local from the start", main=True, method="local", local_steps=(FROM_START,))


def jobs(scale: Scale) -> list[TrainJob]:
    groups = by_workers(scale)
    swept = [*by_steps(scale).values(), from_start(scale)]
    return jobs_of([*swept, *(one for group in groups.values() for one in group.values())])


def claims(records: Records) -> Iterator[Claim]:
    by = by_steps(records.scale)
    for steps in LOCAL_STEPS[1:]:
        yield claim(
            records,
            f"Post-local SGD with H = {steps} is better than mini-batch SGD at K = 16.",
            "section 4.2",
            by[steps],
            by[1],
            family="post-local",
        )
    yield claim(
        records,
        "At H = 16 post-local SGD is better than local SGD from the start.",
        "section 4.2",
        by[FROM_START],
        from_start(records.scale),
        family="start",
    )
    groups = by_workers(records.scale)
    for workers in WORKERS[:-1]:
        yield claim(
            records,
            f"Post-local SGD with H = 16 is better than mini-batch SGD at K = {workers}.",
            "section 4.2",
            groups[16][workers],
            groups[1][workers],
            family="post-local",
        )


def page(records: Records) -> Page:
    scale = records.scale
    by, groups = by_steps(scale), by_workers(scale)
    rows = [Row((16, h), one) for h, one in by.items()]
    rows += [Row((k, h), groups[h][k]) for k in WORKERS[:-1] for h in groups]
    rows.append(Row((16, f"{FROM_START}, from the start"), from_start(scale)))
    return Page(
        tables=[table("Post-local SGD by K and H", ("K", "H"), rows, records, paper=())],
        pictures=[
            boxes("by-h", "Test accuracy by H at K = 16", records, {"K = 16": by}, x_label="H"),
            boxes(
                "by-k",
                "Test accuracy by K, for H = 1, 16 and 32",
                records,
                {f"H = {h}": group for h, group in groups.items()},
                x_label="K",
            ),
        ],
        claims=list(claims(records)),
        notes=["The paper gives no numbers beside these pictures; K = 32 is left out."],
    )


STUDY = Study(LABEL, jobs, page)
