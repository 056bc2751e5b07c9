"""Methods by name: how H, and later reducers and outer optimizers, are chosen for every level.

A method is a combination of what the seams offer. To add one, add an entry; a new schedule, reducer
or outer optimizer is a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from localsgd.names import unknown
from localsgd.schedule import Schedule, WarmupShape, every, post_local, warmup


@dataclass(frozen=True)
class Moments:
    """The points of a run that methods refer to, in local steps.

    Args:
        switch: the first step of the second phase.
        warmup_steps: the period of a local-step warm-up.
        warmup_shape: how H grows in it.
    """

    switch: int
    warmup_steps: int
    warmup_shape: WarmupShape


@dataclass(frozen=True)
class Method:
    """How a run agrees.

    Args:
        title: for people.
        schedule: of one level, from its H and the run's moments.
        several_levels: whether it needs more than one.
        uses: which of the run's settings it reads, of `local_steps`, `switch`, `step_warmup`.
    """

    title: str
    schedule: Callable[[int, Moments], Schedule]
    several_levels: bool = False
    uses: tuple[str, ...] = ("local_steps",)


def _local(local_steps: int, moments: Moments) -> Schedule:
    return every(local_steps)


def _post_local(local_steps: int, moments: Moments) -> Schedule:
    return post_local(local_steps, after=moments.switch)


METHODS = {
    "mini-batch": Method(
        "mini-batch SGD: all agree after every step", lambda h, at: every(1), uses=()
    ),
    "local": Method("local SGD: H local steps between agreements (Algorithm 1)", _local),
    "post-local": Method(
        "post-local SGD: H = 1 until the switch, then H (Algorithm 2)",
        _post_local,
        uses=("local_steps", "switch"),
    ),
    "local-warmup": Method(
        "local SGD whose H grows from 1 over a period (B.4.2)",
        lambda h, at: warmup(h, at.warmup_steps, at.warmup_shape),
        uses=("local_steps", "step_warmup"),
    ),
    "hierarchical": Method(
        "hierarchical local SGD: H inside a block, H^b rounds between blocks (Algorithm 5)",
        _local,
        several_levels=True,
    ),
    "hierarchical-post-local": Method(
        "hierarchical local SGD after the switch, mini-batch SGD before",
        _post_local,
        several_levels=True,
        uses=("local_steps", "switch"),
    ),
}


def method(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
