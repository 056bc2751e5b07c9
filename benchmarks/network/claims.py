"""What has to hold on the network, as ratios of times of one turn: their median against a bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.network import rates
from benchmarks.network.contestants import BOUND, CONTESTANTS, DDP
from benchmarks.network.race import Laps
from benchmarks.network.scenes import Results, Scene
from benchmarks.report import Finding
from benchmarks.timing import Spread, ratios

SHARES = {
    ("h16-delayed", 100_000_000): 0.97,
    ("h16-delayed", 10_000_000): 0.88,
    ("h16-sign", 100_000_000): 0.97,
    ("h16-sign", 10_000_000): 0.95,
    ("h1-sign", 100_000_000): 0.9,
}
"""Smallest fraction of the samples per second without communication, by contestant and rate."""

OF_WHAT_BYTES_ALLOW = 0.98
"""Smallest fraction of the speed that the bytes alone would allow, for H = 16 dense."""

FAST = rates.MOST
"""A rate at which nothing of ours is slower than DDP."""

FASTER_THAN_FREQUENT, SLOWER_THAN_RARE = 3.0, 1.1
"""Hierarchical, H = 2 and Hb = 8, against flat H = 2 and against flat H = 16."""


def claims(results: Results) -> list[Finding]:
    """One for each claim about a scene that was run."""
    found = []
    for scene, laps in results.items():
        if scene.up_link is None:
            found += [*_shares(scene, laps), *_allowed(scene, laps), *_on_fast(scene, laps)]
        else:
            found += _racks(scene, laps)
    return found


def _shares(scene: Scene, laps: Mapping[str, Laps]) -> Iterator[Finding]:
    for (name, rate), least in SHARES.items():
        if scene.rate == rate:
            spread = ratios(laps[name].seconds, laps[BOUND].seconds)
            yield _claim(scene, name, "no communication", spread, 1 / least)


def _allowed(scene: Scene, laps: Mapping[str, Laps]) -> Iterator[Finding]:
    """Bytes are those that the interfaces counted, and take as long as the rate says."""
    if scene.rate == FAST:
        return
    own = laps["h16"]
    allowed = [
        base + 8 * crossed / scene.rate
        for base, crossed in zip(laps[BOUND].seconds, own.node_bytes, strict=True)
    ]
    spread = ratios(own.seconds, allowed)
    yield _claim(scene, "h16", "what its bytes allow", spread, 1 / OF_WHAT_BYTES_ALLOW)


def _on_fast(scene: Scene, laps: Mapping[str, Laps]) -> Iterator[Finding]:
    if scene.rate == FAST:
        for name, own in laps.items():
            if CONTESTANTS[name].ours:
                yield _claim(scene, name, "DDP", ratios(own.seconds, laps[DDP].seconds), 1.0)


def _racks(scene: Scene, laps: Mapping[str, Laps]) -> Iterator[Finding]:
    for other, bound in (("h2", 1 / FASTER_THAN_FREQUENT), ("h16", SLOWER_THAN_RARE)):
        spread = ratios(laps["hierarchical"].seconds, laps[other].seconds)
        yield _claim(scene, "hierarchical", CONTESTANTS[other].title, spread, bound)


def _claim(scene: Scene, name: str, against: str, spread: Spread, bound: float) -> Finding:
    cells = {
        "time against": against,
        "ratio": f"[bold]{spread.median:.3f}[/]",
        "its quartiles": f"{spread.lower:.3f} - {spread.upper:.3f}",
    }
    figures = {"against": against, "ratio": vars(spread)}
    title = CONTESTANTS[name].title
    return Finding(scene.title, title, cells, figures, spread.median, bound)
