"""The scenes of the table: their links and contestants, and how they are run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks import crew as alone
from benchmarks.network import rates
from benchmarks.network.contestants import BOUND, CONTESTANTS, DDP, IN_STEP
from benchmarks.network.crew import crew
from benchmarks.network.laboratory import laboratory
from benchmarks.network.race import Laps, Race
from benchmarks.network.refusal import Refused

NODES = 4
INSIDE, UP_LINK = 1_000_000_000, 10_000_000
"""Bits per second of nodes' links, and of up-links if there are racks."""

FLAT = (
    BOUND,
    IN_STEP,
    DDP,
    "ddp-fp16",
    "ddp-power-sgd",
    "post-local",
    "accelerate",
    "torchft",
    "torchft-diloco",
    "h1",
    "h1-sign",
    "h16",
    "h16-sign",
    "h16-delayed",
)
FAST = (BOUND, IN_STEP, DDP, "post-local", "h1", "h1-sign", "h16")
RACKS = (BOUND, "averager", "h2", "h16", "hierarchical")


@dataclass(frozen=True)
class Scene:
    """Links, and who runs on them.

    Args:
        rate: of every node's link, bits a second.
        names: of contestants, the bound first.
        up_link: of the up-links of 2 racks; `None` is one rack.
    """

    rate: int
    names: tuple[str, ...]
    up_link: int | None = None

    @property
    def racks(self) -> int:
        return 1 if self.up_link is None else 2

    @property
    def title(self) -> str:
        if self.up_link is None:
            return rates.named(self.rate)
        return f"2 racks, {rates.named(self.rate)}, up-links {rates.named(self.up_link)}"


Results: TypeAlias = Mapping[Scene, Mapping[str, Laps]]
"""The laps of every scene, by contestant."""


def scenes(flat_rates: Sequence[str], racks: bool, only: Sequence[str] = ()) -> list[Scene]:
    """A scene for each rate, and one of racks; at the highest rate fewer contestants run.

    Args:
        flat_rates: of nodes' links.
        racks: whether there is a scene with racks.
        only: names of contestants that run at all rates, in place of all that; the bound runs too.
    """
    given = [rates.bits_per_second(text) for text in flat_rates]
    if only:
        return [Scene(rate, _named(only)) for rate in given]
    found = [Scene(rate, FAST if rate == rates.MOST else FLAT) for rate in given]
    return [*found, Scene(INSIDE, RACKS, UP_LINK)] if racks else found


def _named(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in CONTESTANTS:
            known = ", ".join(CONTESTANTS)
            raise Refused(f"no contestant is called {name!r}; there are {known}")
    return tuple(dict.fromkeys((BOUND, *names)))


def run(chosen: Sequence[Scene], model: str, batch: int, turns: int) -> Results:
    """What every contestant that is installed took; one laboratory for each number of racks."""
    found: dict[Scene, Mapping[str, Laps]] = {}
    for racks in dict.fromkeys(scene.racks for scene in chosen):
        group = [scene for scene in chosen if scene.racks == racks]
        with (
            laboratory(NODES, racks) as made,
            crew(made, environment=alone.KEEPING) as workers,
        ):
            race = Race(made, workers, model, batch)
            for name in dict.fromkeys(name for scene in group for name in present(scene)):
                race.enter(name, CONTESTANTS[name].steps)
            for scene in group:
                made.shape(scene.rate, scene.up_link)
                found[scene] = race.take_turns(present(scene), turns)
    return found


def present(scene: Scene) -> list[str]:
    return [name for name in scene.names if not CONTESTANTS[name].missing]
