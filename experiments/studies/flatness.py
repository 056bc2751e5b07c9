"""Flatness of the final models of mini-batch and post-local SGD: four figures of the same runs.

At the medium scale M4 of `headline` stands for all four.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from experiments.flat import WORDS, Flat, jobs, note
from experiments.landscape import claims as flat
from experiments.landscape import figures
from experiments.landscape.design import ARMS, DIRECTIONS, FORKED, MANY, SETS
from experiments.landscape.measures import MINI_BATCH, POST_LOCAL, SCRATCH, SHAPES
from experiments.registry import entry
from experiments.study import Cell, Page, Records, Study, Table


def _about(*places: str) -> Callable[[flat.Claim], bool]:
    return lambda claim: any(place in claim.where for place in places)


def flatness(records: Records) -> Page:
    """fig:understanding_generalization."""
    found = Flat.of(records)
    rows: list[list[Cell]] = []
    for arm in FORKED:
        values = (found.spread(_exp(flat.phase_two(arm, data))) for data in SETS)
        rows.append([WORDS[arm], *values, len(found.seeds)])
    headings = ("arm", "λ max, train", "λ max, test", "seeds")
    title = "Dominant eigenvalue of the Hessian over the second phase (geometric mean)"
    claims = [
        *found.claims(
            lambda claim: claim.where == "the same" or "understanding (a)" in claim.where,
            "section 5.1, figure (a)",
        ),
        *found.claims(
            lambda claim: "understanding (b)" in claim.where and "resumed" in claim.text,
            "section 5.1, figure (b)",
        ),
    ]
    return Page(
        tables=[Table(title, headings, rows, [found.jobs] * len(rows))],
        pictures=[
            found.picture("largest", "λ max by epoch of the second phase, by H", figures.largest),
            found.picture("lines", LINES, figures.lines),
        ],
        claims=claims,
        notes=[note(records.scale.name)],
    )


def spectrum(records: Records) -> Page:
    """fig:resnet20_cifar10_spectrum_of_hessian."""
    found = Flat.of(records)
    paper = [row["test_accuracy"] for row in entry("spectrum").values]
    rows: list[list[Cell]] = []
    for arm in ARMS:
        numbers = (
            found.spread(_exp(flat.top(arm, data, count))) for data in SETS for count in (1, 10)
        )
        published = _published(arm, f"{paper[0]:g}", f"{paper[1]:g} to {paper[2]:g}")
        rows.append([WORDS[arm], *numbers, found.spread(flat.accuracy(arm)), published])
    headings = (
        "arm",
        "λ max, train",
        "ten largest, train",
        "λ max, test",
        "ten largest, test",
        "test acc. (%)",
        "paper's test acc.",
    )
    title = "Eigenvalues of the Hessian at the end (ten largest: geometric mean)"
    return Page(
        tables=[Table(title, headings, rows, [found.jobs] * len(rows))],
        pictures=[
            found.picture("relative", "λ max by epoch, over mini-batch SGD's", figures.relative),
            found.picture("top", "The ten largest eigenvalues at the end, by rank", figures.top),
        ],
        claims=found.claims(
            lambda claim: "spectrum (c, d)" in claim.where or "Keskar" in claim.where,
            "appendix C.4",
        ),
        notes=[note(records.scale.name), BEST],
    )


def sharpness(records: Records) -> Page:
    """fig:sharpness_visualization_resnet20_cifar10_repeatability."""
    found = Flat.of(records)
    paper = {row["method"]: row["test_accuracy"] for row in entry("sharpness").values}
    rows: list[list[Cell]] = []
    for arm in SHAPES:
        rises = (found.spread(_exp(flat.mean_rise(arm, data))) for data in SETS)
        flatter = (_flatter(found, arm, data) for data in SETS)
        published = _published(arm, f"{paper['mini-batch']:g}", f"{paper['post-local']:g}")
        accuracy = found.spread(flat.accuracy(arm))
        rows.append([WORDS[arm], *rises, *flatter, accuracy, published])
    headings = (
        "arm",
        "rise, train",
        "rise, test",
        f"flatter, train (of {DIRECTIONS})",
        f"flatter, test (of {DIRECTIONS})",
        "test acc. (%)",
        "paper's test acc.",
    )
    title = "Mean rise of the loss along shared directions; in how many it is below mini-batch's"
    return Page(
        tables=[Table(title, headings, rows, [found.jobs] * len(rows))],
        pictures=[found.picture("curves", "Loss along ten shared directions", figures.curves)],
        claims=found.claims(_about("sharpness"), "appendix C.4"),
        notes=[note(records.scale.name), NEAR],
    )


def interpolation(records: Records) -> Page:
    """fig:1d_interpolation_resnet20_cifar10_complete."""
    found = Flat.of(records)
    rows = [
        [start, data, *map(found.spread, _on_line(start, data))]
        for start in (POST_LOCAL, SCRATCH)
        for data in SETS
    ]
    headings = ("start", "data", "loss at -0.5", "at 0", "at 1", "at 1.5", "barrier")
    title = "Loss on the line from post-local SGD (0) to mini-batch SGD (1)"
    return Page(
        tables=[Table(title, headings, rows, [found.jobs] * len(rows))],
        pictures=[found.picture("lines", LINES, figures.lines)],
        claims=found.claims(_about("interpolation"), "appendix C.4"),
        notes=[note(records.scale.name), SCRATCHED],
    )


def _exp(value: flat.Value) -> flat.Value:
    return lambda records: float(np.exp(value(records)))


def _published(arm: str, mini_batch: str, post_local: str) -> Cell:
    return {MINI_BATCH: mini_batch, POST_LOCAL: post_local}.get(arm, "")


def _flatter(found: Flat, arm: str, data: str) -> Cell:
    """The number of directions in which the loss rises less than for mini-batch SGD, by seed."""
    if not found.seeds:
        return None
    if arm == MINI_BATCH:
        return ""
    pairs = ((flat.rises(s, arm, data), flat.rises(s, MINI_BATCH, data)) for s in found.seeds)
    return ", ".join(str(int((own < other).sum())) for own, other in pairs)


def _line(records: flat.Records, start: str) -> dict:
    return flat.one(records, "interpolation", pair=f"{start} to {MINI_BATCH}")


def _loss(start: str, data: str, at: float) -> flat.Value:
    def value(records: flat.Records) -> float:
        line = _line(records, start)
        return dict(zip(line["positions"], line["data"][data]["loss"], strict=True))[at]

    return value


def _on_line(start: str, data: str) -> list[flat.Value]:
    losses = [_loss(start, data, at) for at in (-0.5, 0.0, 1.0, 1.5)]
    return [*losses, _barrier(start, data)]


def _barrier(start: str, data: str) -> flat.Value:
    return lambda records: _line(records, start)["barrier"][data]


LINES = "Loss on the line from post-local SGD (0) to mini-batch SGD (1), resumed and from scratch"
BEST = "All is that of the end of training; the paper takes the best model by test accuracy."
NEAR = (
    "The rise is that over steps up to half a filter's length, on both sides; flatter directions "
    "are counted by seed. The paper finds all ten flatter."
)
SCRATCHED = (
    f"H = {MANY} alone; the paper has H = 32 too. From scratch is from other first weights and "
    "another order of samples. Flatter on the side of post-local SGD: the loss rises less from 0 "
    "to -0.5 than from 1 to 1.5."
)
PAGES = {
    "fig:understanding_generalization": flatness,
    "fig:resnet20_cifar10_spectrum_of_hessian": spectrum,
    "fig:sharpness_visualization_resnet20_cifar10_repeatability": sharpness,
    "fig:1d_interpolation_resnet20_cifar10_complete": interpolation,
}
STUDIES = tuple(
    Study(label, jobs, page, scales=("smoke", "small", "paper")) for label, page in PAGES.items()
)
