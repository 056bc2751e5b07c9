"""What a process of the crew does for `signs`: average the tensors of WRN-28-10, in every way."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from benchmarks.network.payload import WAYS
from benchmarks.workloads import layout_of, normal_rows, wide_resnet
from localsgd.averaging.build import build_levels
from localsgd.averaging.level import Averaging, average_and_share
from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.reduce import CompressedMean, ExactMean, Sign
from localsgd.rows.layout import Layout
from localsgd.wire import Ledger

_levels: dict[str, tuple[torch.Tensor, list[Averaging], Ledger]] = {}


def prepare(members: int) -> None:
    """Rows, and levels over them, for every way."""
    layout = layout_of(wide_resnet(), members)
    placement = placement_of(Topology((members,)))
    start = normal_rows(layout, dist.get_rank())
    for way in WAYS:
        rows, ledger = start.clone(), Ledger.of(1)
        mean = ExactMean() if way == "dense" else _signs(way, layout)
        levels = build_levels(placement, rows, reducers=[mean], ledger=ledger)
        _levels[way] = rows, levels, ledger


def _signs(way: str, layout: Layout) -> CompressedMean:
    return CompressedMean(Sign(), feedback=True, way=way, layout=layout)  # type: ignore[arg-type]


def average(way: str) -> tuple[float, int]:
    """Seconds, and payload bytes."""
    rows, levels, ledger = _levels[way]
    rows *= 1 + 0.01 * dist.get_rank()  # There is something to average.
    before = ledger.bytes
    dist.barrier()
    start = time.perf_counter()
    average_and_share(levels)
    return time.perf_counter() - start, ledger.bytes - before
