"""Minutes of a training by H, up to 1,024, on a fitted clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.claims import OPEN
from experiments.clock import FITTED, STEPS, fitted, minutes
from experiments.study import Claim, Page, Picture, Records, Study, Table
from localsgd.cost.speedup import Clock
from localsgd.landscape.figures.style import COLOURS, legend, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABEL = "tab:multi_gpus_local_sgd_extreme_time"
PLACE = "appendix D.3"


def page(records: Records) -> Page:
    clock, paper = fitted(), minutes()
    errors = clock.errors(paper)
    rows = [
        [h, STEPS // h, round(clock.time(h), 2), time, f"{100 * errors[h]:+.1f} %"]
        for h, time in paper.items()
    ]
    table = Table(
        "Minutes of 300 epochs (modelled)",
        ("H", "syncs", "T(H)", "paper", "error"),
        rows,
    )
    picture = Picture("minutes", "Minutes of a run by H: the paper's, and the clock's", draw)
    return Page(
        tables=[table], pictures=[picture], claims=_claims(clock, paper), notes=(_note(clock),)
    )


def _claims(clock: Clock, paper: dict[int, float]) -> list[Claim]:
    """The claims; those about times that the clock is fitted to can't be confirmed by it."""
    rising = {h: time for h, time in paper.items() if h > FITTED}
    said = (
        "it takes a cluster: on the clock time falls with every H, to "
        f"{clock.time(max(paper)):.2f} minutes; the paper measured "
        f"{min(rising.values()):.2f} to {max(rising.values()):.2f}, after "
        f"{paper[FITTED]:.2f}, and its cost of communication has no term for it"
    )
    return [
        Claim(sentence, PLACE, OPEN, said, reservation=said, family="time")
        for sentence in (
            f"Up to H = {FITTED} more local steps shorten a training, by less and less.",
            f"Beyond H = {FITTED} a training takes longer again.",
        )
    ]


def draw() -> Figure:
    """Draws the paper's minutes and the model's over H."""
    figure, (axes,) = panels()
    clock, paper = fitted(), minutes()
    axes.plot(*zip(*paper.items(), strict=True), "o", ms=4, color=COLOURS[1], label="paper")
    axes.plot([*paper], [clock.time(h) for h in paper], color=COLOURS[0], label="T(H), modelled")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="local steps H", ylabel="minutes", ylim=(0, None))
    legend(axes)
    return figure


def _note(clock: Clock) -> str:
    step, sync = (60e3 * part / STEPS for part in (clock.compute, clock.syncing))
    return (
        f"Modelled, by least squares through the paper's own minutes up to H = {FITTED}: "
        f"{step:.0f} ms a local step and {sync:.0f} ms a sync, as it has "
        f"{STEPS:,} steps: 25 an epoch, the last one short, as in the paper's code "
        "(its Eq. comm_cost has 7,325). What H does not divide is no round of its own."
    )


STUDY = Study(LABEL, lambda scale: (), page)
