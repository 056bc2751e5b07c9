"""The table as a picture: how much of the speed without communication is left, and what is sent."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.network.contestants import BOUND, CONTESTANTS
from benchmarks.network.race import Laps
from benchmarks.network.rates import named
from benchmarks.network.scenes import Results, Scene
from benchmarks.timing import ratios
from localsgd.show.canvas import bytes_axis, canvas, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(results: Results, path: Path, title: str) -> None:
    """A panel of shares over link rates, one of bytes, and one of the racks if they were run."""
    flat = {scene: laps for scene, laps in results.items() if scene.up_link is None}
    racks = {scene: laps for scene, laps in results.items() if scene.up_link is not None}
    count = 2 * bool(flat) + bool(racks)
    with canvas(path, 1.0 + 4.6 * count, 5.4) as figure:
        panels = list(figure.subplots(1, count, squeeze=False)[0])
        if flat:
            _shares(panels.pop(0), flat)
            _bytes(panels.pop(0), flat)
        for scene, laps in racks.items():
            _rack_shares(panels.pop(0), scene, laps)
        figure.suptitle(f"{title}; cores are shared", fontsize=11)


def _share(laps: Laps, bound: Laps) -> float:
    return ratios(bound.seconds, laps.seconds).median


def _names(results: Results) -> list[str]:
    return [
        name
        for name in dict.fromkeys(n for laps in results.values() for n in laps)
        if name != BOUND
    ]


def _shares(axes: Axes, results: Results) -> None:
    by_rate = sorted(results, key=lambda scene: scene.rate)
    for index, name in enumerate(_names(results)):
        run = [scene for scene in by_rate if name in results[scene]]
        shares = [_share(results[scene][name], results[scene][BOUND]) for scene in run]
        x = [scene.rate for scene in run]
        axes.plot(x, shares, label=CONTESTANTS[name].title, **look(index))
    axes.set_xscale("log")
    axes.set_xticks([scene.rate for scene in by_rate], [scene.title for scene in by_rate])
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.set_ylim(0, None)
    axes.set_xlabel("rate of a node's link")
    axes.set_ylabel("samples/s, share of no communication")
    axes.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))


def _bytes(axes: Axes, results: Results) -> None:
    """Draws the bytes at one rate; they are the same at all rates."""
    laps = max(results.values(), key=len)
    names = [name for name in laps if name != BOUND][::-1]
    sent = [statistics.median(laps[name].node_bytes) for name in names]
    axes.barh([CONTESTANTS[name].title for name in names], sent, color=look(0)["color"])
    bytes_axis(axes)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel("bytes a node sends for a step")


def _rack_shares(axes: Axes, scene: Scene, laps: dict[str, Laps]) -> None:
    names = [name for name in laps if name != BOUND][::-1]
    shares = [_share(laps[name], laps[BOUND]) for name in names]
    axes.barh([CONTESTANTS[name].title for name in names], shares, color=look(1)["color"])
    axes.tick_params(axis="y", labelsize=7)
    up_link = named(scene.up_link)
    axes.set_xlabel(f"share of no communication;\n2 racks, up-links {up_link}")
