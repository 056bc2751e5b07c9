"""The paper's two drawings: a topology, and the times of its syncs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.registry import entry
from experiments.study import Cell, Claim, Page, Picture, Records, Study, Table
from localsgd.averaging.topology import Topology
from localsgd.cost.allreduce import Link, ring
from localsgd.cost.counts import syncs
from localsgd.landscape.figures.style import COLOURS, legend, panels
from localsgd.schedule.fixed import every
from localsgd.schedule.rounds import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RACKS = "2x2x2"
LEVELS = ("within a server", "within a rack", "between racks")
LINKS = (Link.of_rate(400e9, 5e-6), Link.of_rate(25e9, 30e-6), Link.of_rate(10e9, 50e-6))
"""Usual ones, not the paper's, which names none: NVLink, and Ethernet of two kinds."""
MODEL = 1.1e6
"""Bytes of ResNet-20."""
BLOCKS, LOCAL, BLOCK = "2x2", 3, 2
"""Setting of the second drawing: two blocks of two, H = 3, H^b = 2."""
STEPS = 2 * LOCAL * BLOCK


def datacenter(records: Records) -> Page:
    """fig:datacenter_illustration."""
    topology = Topology.parse(RACKS)
    rows: list[list[Cell]] = []
    for name, members, link in zip(LEVELS, topology.sizes, LINKS, strict=True):
        milliseconds = 1e3 * ring(members, MODEL).seconds(link)
        rows.append([name, members, f"{8e-9 / link.beta:g}", round(milliseconds, 3)])
    headings = ("level", "members of a group", "Gbit/s", "ms a sync (modelled)")
    drawing = Picture(
        "topology", f"The topology {RACKS}: 2 racks of 2 servers of 2 GPUs", _draw_topology
    )
    return Page(
        tables=[Table("What a sync on ResNet-20 crosses", headings, rows)],
        pictures=[drawing],
        notes=[
            "A drawing that follows from a topology. Rates are usual ones that we chose, not the "
            "paper's: that links between racks are slower follows from the choice, and is no claim."
        ],
    )


def _draw_topology() -> Figure:
    """A tree, the GPUs at its bottom."""
    figure, (axes,) = panels()
    sizes = Topology.parse(RACKS).sizes
    places = [float(worker) for worker in range(Topology.parse(RACKS).workers)]
    _nodes(axes, places, 0, "GPU")
    for level, (size, name) in enumerate(zip(sizes, ("server", "rack", "all"), strict=True), 1):
        parents = [sum(places[i : i + size]) / size for i in range(0, len(places), size)]
        for index, place in enumerate(places):
            _edge(
                axes,
                (parents[index // size], place),
                level,
                LEVELS[level - 1] if not index else None,
            )
        places = parents
        _nodes(axes, places, level, name)
    axes.set(xlim=(-0.8, 7.8), ylim=(-0.5, 3.5))
    axes.axis("off")
    legend(axes)
    return figure


def _edge(axes: Axes, ends: tuple[float, float], level: int, label: str | None) -> None:
    axes.plot(
        ends, (level, level - 1), color=COLOURS[level - 1], lw=4 - level, label=label, zorder=1
    )


def _nodes(axes: Axes, places: list[float], level: int, name: str) -> None:
    for place in places:
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "#555555"}
        axes.text(place, level, name, ha="center", va="center", fontsize=8, bbox=box, zorder=2)


def rounds(records: Records) -> Page:
    """fig:h_local_sgd_illustration."""
    drawn = picture([every(LOCAL), every(BLOCK)], STEPS)
    wanted = ("." * LOCAL + "1") * (BLOCK - 1) + "." * LOCAL + "2"
    counted = syncs(STEPS, 1, 1, LOCAL, BLOCK)
    rows: list[list[Cell]] = [
        ["local steps", STEPS],
        ["syncs within blocks alone", drawn.count("1")],
        ["syncs of all", drawn.count("2")],
    ]
    counts = [(row["local_steps"], row["syncs_within"]) for row in _published()]
    ours = [(h, syncs(16, 1, 1, h, 16 // h).inside) for h, _ in counts]
    return Page(
        tables=[Table(f"Of {STEPS} local steps, H = {LOCAL}, H^b = {BLOCK}", ("", "count"), rows)],
        pictures=[Picture("rounds", TITLE, _draw_rounds)],
        claims=[
            Claim(
                f"With H = {LOCAL} and H^b = {BLOCK} blocks average after every {LOCAL} local "
                f"steps, "
                f"and every {BLOCK}nd time all synchronise instead.",
                "appendix D.1",
                "consistent" if drawn == wanted * 2 else "not consistent",
                f"the schedule drawn: {drawn}",
                kind="computed",
                family="counts",
            ),
            Claim(
                "For one sync of all, blocks average 15, 7, 3, 1 and 0 times where H H^b = 16.",
                "appendix D.3, table",
                "consistent" if sorted(ours) == sorted(counts) else "not consistent",
                f"counted: {', '.join(str(n) for _, n in sorted(set(ours)))}; by equation "
                f"comm_cost {counted.inside} and {counted.across} in the drawing",
                kind="computed",
                family="counts",
            ),
        ],
        notes=["A drawing that follows from two schedules; samples of a step are not drawn."],
    )


def _published() -> list[dict]:
    return entry("hierarchical").values


def _draw_rounds() -> Figure:
    """Workers from above, time to the right."""
    figure, (axes,) = panels()
    workers = Topology.parse(BLOCKS).workers
    step = 0
    for mark in picture([every(LOCAL), every(BLOCK)], STEPS):
        if mark == ".":
            for worker in range(workers):
                arrow = {"arrowstyle": "->", "color": COLOURS[1], "lw": 1.4}
                axes.annotate("", (step + 0.95, worker), (step + 0.05, worker), arrowprops=arrow)
            step += 1
        elif mark == "1":
            for first in range(0, workers, 2):
                axes.plot([step] * 2, [first - 0.25, first + 1.25], color=COLOURS[3], lw=4)
        else:
            axes.plot([step] * 2, [-0.4, workers - 0.6], color="black", lw=4)
    for label, colour in zip(MEANINGS, (COLOURS[1], COLOURS[3], "black"), strict=True):
        axes.plot([], [], color=colour, lw=3, label=label)
    axes.set_yticks(range(workers), [f"worker {worker}" for worker in range(workers)])
    axes.set(xlabel="local steps", xlim=(-0.2, STEPS + 0.3), ylim=(workers - 0.2, -1.6))
    axes.grid(False)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper center")
    return figure


MEANINGS = ("local step", "blocks average", "all synchronise")
TITLE = (
    f"Two blocks of two workers, H = {LOCAL}, H^b = {BLOCK}: when they step and when they "
    f"synchronise"
)
STUDIES = (
    Study("fig:datacenter_illustration", lambda scale: (), datacenter),
    Study("fig:h_local_sgd_illustration", lambda scale: (), rounds),
)
