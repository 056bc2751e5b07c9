"""Parameters and operations of the paper's networks, counted in ours."""

from __future__ import annotations

from typing import Any

from experiments.registry import Size, entry, size_of
from experiments.study import Cell, Claim, Page, Records, Study, Table

LABEL = "tab:scaling_ratio_model"
CLOSE = 0.015
"""Tolerance for the paper's ratio, as its counts of operations have two digits."""
PLACE = "appendix A.2"


def page(records: Records) -> Page:
    paper = entry("scaling-ratio").values
    rows = [_row(one, size_of(one["model"], one["task"])) for one in paper]
    headings = (
        "model",
        "task",
        "parameters",
        "paper (millions)",
        "multiply-adds",
        "paper (billions)",
        "ratio",
        "paper's ratio",
    )
    return Page(
        tables=[Table("Counted for one sample", headings, rows)],
        claims=[_claim(one) for one in paper],
        notes=NOTES,
    )


def _row(paper: dict[str, Any], size: Size) -> list[Cell]:
    return [
        paper["model"],
        paper["task"],
        f"{size.parameters:,}",
        paper["parameters"],
        f"{size.multiplications:,}",
        paper["operations"],
        round(size.ratio, 2),
        paper["ratio"],
    ]


def _claim(paper: dict[str, Any]) -> Claim:
    size = size_of(paper["model"], paper["task"])
    off = size.ratio / paper["ratio"] - 1
    return Claim(
        f"{paper['model']} on {paper['task']} takes about {paper['ratio']:g} operations for each "
        "parameter.",
        PLACE,
        "consistent" if abs(off) <= CLOSE else "not consistent",
        f"counted: {size.multiplications:,} multiply-adds for {size.parameters:,} parameters, "
        f"{size.ratio:.2f}, {100 * off:+.1f} % off",
        kind="computed",
        family="counts",
    )


NOTES = (
    "Operations are multiply-adds of the forward pass. For ResNet-50 the paper counts "
    "multiplications and additions apart, for the others together; in the same unit its ratio is "
    "160, not 308, and it has 25.56 million parameters, not 25.00.",
    f"A ratio counts as consistent within {100 * CLOSE:g} % of the paper's, which has its own from "
    "rounded counts.",
)
STUDY = Study(LABEL, lambda scale: (), page)
