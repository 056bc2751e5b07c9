"""Makes the levels over rows, for a placement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from localsgd.averaging.delay import NO_DELAY, Delay, Fragmented
from localsgd.averaging.gossip import Gossip, Mixing
from localsgd.averaging.level import Blocks, Level, Spare
from localsgd.averaging.outer import Outer
from localsgd.averaging.placement import AnyLevel, HostedLevel, Placement, row_multiple
from localsgd.reduce import Reducer
from localsgd.reduce.compressor import scale_dtype
from localsgd.wire import (
    Entry,
    Ledger,
    Metered,
)
from localsgd.wire.metered import Waiting


def build_levels(
    placement: Placement,
    rows: Tensor,
    *,
    reducers: Sequence[Reducer] | None = None,
    outers: Sequence[Outer | None] | None = None,
    ledger: Ledger | None = None,
    waiting: Waiting = nullcontext,
    delay: Delay = NO_DELAY,
    weigh: Callable[[], Tensor] | None = None,
    spare: Spare | None = None,
    mixing: Mixing | None = None,
) -> list[AnyLevel]:
    """The levels over `rows [w, n]` of the workers hosted here, innermost first.

    Args:
        placement: where the workers are, from `placement_of`.
        rows: the models (or gradients) to synchronise.
        reducers, outers: one for each level; exact mean and plain averaging if not given.
        ledger: counts the traffic of each level, for one member (of the first worker's block, if
            blocks differ).
        waiting: a context around everything that may wait for other processes.
        delay: of the outermost level's syncs.
        weigh: returns the weights of the workers hosted here, `[1, w]`, at every sync of the
            outermost level; there is only one level then.
        spare: allows members that are not finite to be left out of linear means.
        mixing: lets the members of the outermost level average with neighbours instead of with all.
    """
    count = placement.topology.levels

    def make(
        level: int, hosted: HostedLevel, members: Tensor, counted: bool = True, **options: Any
    ) -> AnyLevel:
        collective = hosted.collective
        if ledger is not None:
            entry = ledger.levels[level] if counted else Entry()
            collective = Metered(collective, entry, waiting)
        outer = outers[level] if outers else None
        if level == count - 1 and mixing is not None:
            return Gossip(members, collective, mixing, reducers[level] if reducers else None)
        if level == count - 1 and weigh is not None:
            options["weigh"] = weigh

        def make_part(part: Tensor, start: int, stop: int) -> Level:
            reducer = reducers[level] if reducers else None
            if reducer is not None and (not counted or part.shape != members.shape):
                reducer = reducer.part(start, stop)  # with a memory of its own
            own = spare and spare.within(start, stop)
            if own is not None and (level or part is not members):  # not the row that was read
                own = replace(own, seen=lambda: False)
            return Level(part, collective, reducer=reducer, outer=outer, spare=own, **options)

        if level == count - 1 and not delay.none:
            return Fragmented(members, make_part, delay, row_multiple(placement.topology.workers))
        return make_part(members, 0, members.shape[-1])

    if placement.topology.unequal:
        return _unequal_levels(placement, rows, make)
    levels: list[AnyLevel] = []
    for index in range(count):
        hosted = placement.hosted_levels[index]
        levels.append(make(index, hosted, rows.unflatten(0, (hosted.groups, hosted.hosted))))
        if index < count - 1:
            rows = levels[-1].anchor
    return levels


def _unequal_levels(placement: Placement, rows: Tensor, make: Callable[..., Any]) -> list[AnyLevel]:
    blocks = placement.topology.unequal
    hosted = placement.unequal
    anchors = rows[[start for start, _, _ in hosted]].clone()
    *inner, outer = placement.hosted_levels
    levels = [
        make(
            0,
            level,
            rows[start : start + size].unsqueeze(0),
            counted=index == 0,  # The ledger is that of the first worker hosted here.
            anchor=anchors[index : index + 1],
        )
        for index, (level, (start, size, _)) in enumerate(zip(inner, hosted, strict=True))
    ]
    # A block's weight is its number of workers, so that H^b = 1 is the flat average (Lin et al.
    # 2020, K_i). In half precision the weights would be rounded and not add up to 1.
    dtype = scale_dtype(rows.dtype)
    shares = torch.tensor(blocks, dtype=dtype, device=rows.device) / sum(blocks)
    weights = shares[[block for _, _, block in hosted]].unsqueeze(0)
    made = make(1, outer, anchors.unsqueeze(0), weights=weights, units=sum(blocks))
    return [Blocks(levels, anchors), made]
