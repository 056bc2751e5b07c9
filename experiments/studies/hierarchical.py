"""Hierarchical local SGD by topology, with H times H^b = 16."""

from __future__ import annotations

from experiments.arms import Arm, Row, arm, claim, jobs_of, published, table
from experiments.study import Page, Records, Scale, Study

LABEL = "tab:multi_gpus_hierarchical_local_sgd"
TOPOLOGIES = ("8x2", "4x4", "2x8")
SPLITS = ((1, 16), (2, 8), (4, 4), (8, 2))
"""Pairs of H and H^b."""
RATE = {"paper": {"lr": 0.1}}
"""The paper's section starts from 0.1, "without specific tuning"."""
NOTE = (
    "8x2 is 8 blocks of 2 workers. Syncs within, for one of all, are counted as in the "
    "paper, without the one that coincides with it; rounds are all of those within blocks, and "
    "those of all."
)
Setting = tuple[str, int, int]


def arms(scale: Scale) -> dict[Setting, Arm]:
    """The arms by topology, H and H^b; the flat one is first."""
    rate = RATE.get(scale.name, {})
    by: dict[Setting, Arm] = {
        ("16", 16, 1): arm(scale, "flat, H = 16", method="local", local_steps=(16,), **rate)
    }
    for topology in TOPOLOGIES:
        for h, hb in SPLITS:
            by[topology, h, hb] = arm(
                scale,
                f"{topology}, H = {h}, H^b = {hb}",
                method="hierarchical",
                workers=None,
                topology=topology,
                local_steps=(h, hb),
                **rate,
            )
    return by


def page(records: Records) -> Page:
    by = arms(records.scale)
    rows = [
        Row(
            (topology, h, hb, hb - 1),
            one,
            (published("hierarchical", topology=topology, local_steps=h, block_steps=hb),),
        )
        for (topology, h, hb), one in by.items()
    ]
    shown = table(
        "Hierarchical local SGD, H x H^b = 16",
        ("topology", "H", "H^b", "syncs within, for one of all"),
        rows,
        records,
    )
    flat = by["16", 16, 1]
    claims = [
        claim(
            records,
            f"Hierarchical local SGD on {topology} with H = {h}, H^b = {hb} is better than local "
            "SGD with H = 16, at as many syncs of all.",
            "appendix D.3",
            by[topology, h, hb],
            flat,
            family="hierarchical",
        )
        for topology in TOPOLOGIES
        for h, hb in ((2, 8), (8, 2))
    ]
    larger = claim(
        records,
        "With H = 1, H^b = 16, larger blocks are better (2x8 against 8x2).",
        "appendix D.3",
        by["2x8", 1, 16],
        by["8x2", 1, 16],
        family="hierarchical",
    )
    return Page(tables=[shown], claims=[*claims, larger], notes=[NOTE])


STUDY = Study(LABEL, lambda scale: jobs_of([*arms(scale).values()]), page)
