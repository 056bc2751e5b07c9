"""The sign with error feedback against a copy of the row it compresses, on one thread.

A turn takes each once: the copy, and what a member does with its update: add the memory, encode,
decode, and keep what was lost. Decoding into a fresh row, as for each payload that is received,
is reported beside it, and so are the other compressors.

Then whole syncs of 4 gloo processes over loopback, where bytes cost next to nothing and the
work of a compressor is all that shows: against plain averaging of the same tensors.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist

from benchmarks import crew
from benchmarks.report import Finding, publish, timed
from benchmarks.sync import turns
from benchmarks.timing import Action, Times, take_turns, turn_seconds
from benchmarks.workloads import Shapes, layout_of, normal_rows, scalars, wide_resnet
from localsgd.averaging.build import build_levels
from localsgd.averaging.level import average_and_share
from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.reduce import (
    BFloat16,
    CompressedMean,
    Compressor,
    ExactMean,
    Int8,
    PowerSgd,
    Reducer,
    Sign,
    TopK,
)
from localsgd.reduce.extents import Extents
from localsgd.rows.layout import Layout

BOUND = 10.0
LOOPBACK_BOUND = 2.0
PROCESSES = 4
SECONDS = 40.0


def contestants(shapes: Shapes, others: bool) -> dict[str, Action]:
    """The actions, each on a separate row."""
    layout = Layout.of(
        (str(i), torch.empty(shape, device="meta")) for i, shape in enumerate(shapes)
    )
    update = normal_rows(layout, 0)[0]
    copy = torch.empty_like(update)
    actions: dict[str, Action] = {"copy": lambda: copy.copy_(update)}
    compressors: dict[str, Compressor] = {"sign": Sign()}
    if others:
        compressors |= {"int8": Int8(), "bfloat16": BFloat16(), "top-k 1 %": TopK(0.01)}
    for name, compressor in compressors.items():
        actions |= _steps(name, compressor, layout, update)
    return actions


def _steps(
    name: str, compressor: Compressor, layout: Layout, update: torch.Tensor
) -> dict[str, Action]:
    codec = compressor.codec(Extents.of(layout), layout.dtype)
    error, result = layout.rows(2, "cpu")
    payload = torch.zeros(codec.size, dtype=torch.uint8)

    def send() -> None:
        error.add_(update)
        codec.encode(error, payload)
        codec.add(payload, error, -1.0)

    def receive() -> None:
        codec.add(payload, result.zero_())

    return {f"{name} with feedback": send, f"{name}, received": receive}


def timed_here(shapes: Shapes, others: bool, seconds: float) -> dict[str, Times]:
    actions = contestants(shapes, others)
    return take_turns(actions, max(6, int(seconds / turn_seconds(actions))))


def reducers(layout: Layout) -> dict[str, Reducer]:
    """The reducers of whole syncs, with error feedback."""
    return {
        "plain average": ExactMean(),
        "sign": CompressedMean(Sign(), layout=layout),
        "bfloat16": CompressedMean(BFloat16(), layout=layout),
        "int8": CompressedMean(Int8(), layout=layout),
        "top-k 1 %": CompressedMean(TopK(0.01), layout=layout),
        "PowerSGD, rank 2": PowerSgd(layout, 2),
    }


def syncs(shapes: Shapes, seconds: float) -> dict[str, Times]:
    """Measures in one process of several; returns the times of the slowest in each turn."""
    members = dist.get_world_size()
    layout, placement = layout_of(shapes, members), placement_of(Topology((members,)))
    start = normal_rows(layout, dist.get_rank())
    actions: dict[str, Action] = {}
    for name, reducer in reducers(layout).items():
        levels = build_levels(placement, start.clone(), reducers=[reducer])
        actions[name] = partial(average_and_share, levels)
    return turns(actions, seconds, least=4)


def measure(seconds: float = SECONDS) -> list[Finding]:
    """Findings within about this many seconds: the bounded one, then the others."""
    shapes = wide_resnet()
    bounds = {"sign with feedback": BOUND}
    case = f"{scalars(shapes):,} scalars in {len(shapes)} tensors"
    findings = timed(case, crew.run(1, timed_here, shapes, False, seconds), "copy", bounds)
    others = crew.run(1, timed_here, shapes, True, seconds)
    findings += timed(f"{case}, all", others, "copy", {})
    whole = crew.run(PROCESSES, syncs, shapes, seconds)
    bounds = dict.fromkeys(("sign", "bfloat16"), LOOPBACK_BOUND)
    return findings + timed(f"{PROCESSES} processes, loopback", whole, "plain average", bounds)


def main(seconds: float = SECONDS) -> bool:
    torch.set_num_threads(1)
    return publish("compression", "Compressing an update", measure(seconds))


if __name__ == "__main__":
    main()
