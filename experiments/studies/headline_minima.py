"""M4: the flatness of M1's models, fixed before the first counted run.

Arms: A5 with H = 16, the paper's main one, and A2, which it goes on from; seeds 0 to 4. Measured by
`experiments/minima.py`, which says of what, at 1/2 (the switch), 5/8, 3/4 and 7/8 of the steps and
at the end, right after these two arms of a seed are trained. 500 training samples, the same for
both arms and all seeds, for all that is of curvature: on them a product of the Hessian with a
vector takes 4 to 5 s of a core that trains 326 images a second. Ten eigenvalues took 26 products of
a network that was trained for less long, the largest alone 5: about 9 CPU minutes a model with all
the rest.

Claims, of differences paired by seed, in the family "flatness": for A5 as compared with A2, λ max
after the switch (geometric mean), λ max at the end, the ten largest eigenvalues at the end
(geometric mean), the rise of the loss along shared directions, and on which side of the line
between them the loss rises less, by training and by test loss. On the line statistics of batch norm
are estimated at each point on augmented training images: mixed ones fit no model but the two, and
least of all those beyond them. Figures of sharpness that do not depend on the scale of the weights
stand beside them and decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from experiments.arms import Arm
from experiments.flat import Flat
from experiments.landscape import claims as flat
from experiments.landscape.figures import band, over_seeds
from experiments.minima import Measures, Minima
from experiments.study import Claim, Page, Records, Table
from localsgd.landscape.figures.style import COLOURS, legend, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POST_LOCAL, LARGE = "A5, H = 16", "A2"
NAMES = ("A5", "A2")
SEEDS = 5
SHARES = (0.5, 0.625, 0.75, 0.875, 1.0)
MEASURES = Measures(samples=500, line_samples=1000, seconds=1100.0)
SHARP = {
    "filter_wise": "λ max by filter",
    "worst_rise": "worst rise in a ball",
    "filter_worst_rise": "worst rise by filter",
}


def keeping(by: Mapping[str, Arm]) -> dict[str, Arm]:
    """The arms of M1, of which those that are measured keep their models."""
    return {name: _keeping(one) if name in (POST_LOCAL, LARGE) else one for name, one in by.items()}


def _keeping(one: Arm) -> Arm:
    measured = (replace(job, keep=SHARES) for job in one.jobs[:SEEDS])
    return replace(one, jobs=(*measured, *one.jobs[SEEDS:]))


def jobs(by: Mapping[str, Arm]) -> list[Minima]:
    """The measurements of the arms of M1, by seed."""
    pairs = zip(by[POST_LOCAL].jobs[:SEEDS], by[LARGE].jobs[:SEEDS], strict=True)
    return [Minima(first, second, NAMES, MEASURES) for first, second in pairs]


def page(records: Records, by: Mapping[str, Arm]) -> Page:
    """The part of the page of `headline` that is about M4."""
    wanted = jobs(by)
    seeds = [
        [{**one, "seed": job.first.run.seed} for one in record["records"]]
        for job in wanted
        if (record := records.of(job)) is not None and is_measured(record["records"])
    ]
    found = Flat(records, wanted, seeds)
    return Page(
        tables=[_table(found)],
        pictures=[found.picture("minima", "M4: λ max by epoch, and the line from A5 to A2", _draw)],
        claims=_claims(found),
        notes=[NOTE],
    )


def is_measured(records: flat.Records) -> bool:
    """Whether neither model has diverged."""
    return all(one["kind"] != "not measured" for one in records)


def _table(found: Flat) -> Table:
    columns = {
        "λ max, after the switch": after_switch,
        "λ max, end": lambda arm: flat.top(arm, "train", 1),
        "ten largest, end": lambda arm: flat.top(arm, "train", 10),
        "rise along directions": lambda arm: flat.mean_rise(arm, "train"),
    }
    columns |= {
        title: lambda arm, key=key: flat.logarithm(arm, "train", "sharpness", key)
        for key, title in SHARP.items()
    }
    rows = [
        [arm, *(found.spread(_exp(value(arm)), 3) for value in columns.values()), len(found.seeds)]
        for arm in NAMES
    ]
    return Table(
        "M4: curvature on training samples, CIFAR-10, 10,000 images: mean and deviation over "
        "seeds; a seed's own means over epochs, eigenvalues and directions are geometric",
        ("arm", *columns, "seeds"),
        rows,
        jobs=[found.jobs] * len(rows),
    )


def _exp(value: flat.Value) -> flat.Value:
    return lambda records: float(np.exp(value(records)))


def after_switch(arm: str) -> flat.Value:
    """The mean logarithm of λ max at all places after the first, where the arms are still one."""

    def value(records: flat.Records) -> float:
        _, largest = history(records, arm)
        return float(np.log(largest[0, 1:]).mean())

    return value


def history(records: flat.Records, arm: str) -> tuple[np.ndarray, np.ndarray]:
    """Epochs, and λ max [seeds, epochs], on the way and at the end."""
    ends = flat.chosen(records, "eigenvalues", model=arm)
    rows = flat.chosen(records, "largest eigenvalue", model=arm)
    rows += [{**one, "largest": one["values"][0]} for one in ends]
    return over_seeds(rows, "epoch", "largest")


def line(records: flat.Records) -> flat.Records:
    """The lines of all seeds, with statistics estimated at each point."""
    return flat.chosen(records, "interpolation", statistics="estimated")


def _tilt(data: str) -> flat.Value:
    return lambda records: flat.tilt_of(line(records)[0], data)


def _claims(found: Flat) -> list[Claim]:
    post_local, large = NAMES
    below = {
        "λ max after the switch": ("section 5.1, figure (a)", after_switch),
        "λ max at the end": ("appendix C.4", lambda arm: flat.top(arm, "train", 1)),
        "the ten largest eigenvalues at the end": (
            "appendix C.4",
            lambda arm: flat.top(arm, "train", 10),
        ),
        "the rise of the loss along shared directions": (
            "appendix C.4",
            lambda arm: flat.mean_rise(arm, "train"),
        ),
    }
    of = "of post-local SGD with H = 16 (A5) below that of the large batch (A2): M1"
    ratios = [
        (place, flat.Claim(f"{name} {of}", place, flat.minus(value(post_local), value(large)), -1))
        for name, (place, value) in below.items()
    ]
    tilts = [
        (
            "section 5.1, figure (b)",
            flat.Claim(
                f"on the line to the large batch (A2) the {name} loss rises less on the side of "
                "post-local SGD with H = 16 (A5): M1",
                "",
                _tilt(data),
                -1,
                "loss",
            ),
        )
        for data, name in (("train", "training"), ("test", "test"))
    ]
    return [found.judged(claim, place) for place, claim in (*ratios, *tilts)]


def _draw(records: flat.Records) -> Figure:
    """λ max through phase 2; beside it the line between the two, by training and by test loss."""
    figure, (left, *others) = panels(3)
    if not records:  # all models have diverged
        return figure
    for arm, colour in {"A2": COLOURS[1], "A5": COLOURS[2]}.items():  # as in the learning curves
        band(left, arm, *history(records, arm), colour)
    left.set(xlabel="epoch", ylabel="λ max, training samples")
    legend(left)
    rows = line(records)
    for axes, (data, name) in zip(
        others, {"train": "training", "test": "test"}.items(), strict=True
    ):
        losses = np.array([row["data"][data]["loss"] for row in rows], dtype=float)
        band(axes, data, np.array(rows[0]["positions"]), losses, COLOURS[0])
        for end in (0, 1):
            axes.axvline(end, color="grey", linewidth=0.6)
        axes.set_xticks([0, 1], NAMES)
        axes.set(xlabel="on the line through both", ylabel=f"{name} loss")
    return figure


NOTE = (
    f"M4 is of the averaged models, with the workers' mean statistics of batch norm: eigenvalues, "
    f"rises and sharpness by Lanczos on {MEASURES.samples} training samples as they are, the loss "
    f"without weight decay; the line on {MEASURES.line_samples} training and as many test samples, "
    "statistics estimated at each point on augmented training images (its records have a second "
    "one, statistics mixed like the weights, which decides nothing). The paper has power iteration."
)
