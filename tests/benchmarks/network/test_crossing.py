"""What the ledger has counted is what the interfaces have: 4 processes, each on a node of its own.

n scalars of 4 bytes, M = 4 members. Frames add headers to what was handed over, and answers to
what others send: a tenth at most, where a payload fills many frames.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.network.crew import Crew
from benchmarks.network.laboratory import Laboratory
from benchmarks.network.payload import WAYS, sent
from localsgd.averaging.build import build_levels
from localsgd.averaging.level import average_and_share
from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.reduce import CompressedMean, ExactMean, Reducer, Sign
from localsgd.wire import Ledger

SCALARS = 1 << 22
OVERHEAD = 1.10

pytestmark = pytest.mark.timeout(60)


def _reducer(way: str) -> Reducer:
    return ExactMean() if way == "dense" else CompressedMean(Sign(), way=way)  # type: ignore[arg-type]


_averaging: list = []


def prepare(topology: str, ways: list[str]) -> None:
    """In a process of the crew: levels that have averaged once, so that members know their
    place.
    """
    placement = placement_of(Topology.parse(topology))
    levels = placement.topology.levels
    ledger = Ledger.of(levels)
    rows = torch.zeros(1, SCALARS)
    reducers = [_reducer(way) for way in ways]
    _averaging[:] = [build_levels(placement, rows, reducers=reducers, ledger=ledger), ledger]
    average()


def average() -> list[int]:
    """Payload bytes of a sync of all levels, innermost first."""
    levels, ledger = _averaging
    before = [entry.bytes for entry in ledger.levels]
    average_and_share(levels)
    return [entry.bytes - old for entry, old in zip(ledger.levels, before, strict=True)]


@pytest.mark.parametrize("way", WAYS)
def test_payload_is_what_the_interfaces_count(way: str, crew: Crew, racks: Laboratory) -> None:
    crew.call(prepare, "4", [way])
    before = racks.counters()
    payloads = crew.call(average)
    crossed = racks.counters() - before
    assert len(set(map(tuple, payloads))) == 1
    expected = sent(way, payloads[0][0], members=4)
    for node in crossed.nodes:
        assert expected <= node.sent < OVERHEAD * expected
        assert expected <= node.received < OVERHEAD * expected


def test_signs_send_a_32nd_of_a_ring_in_two_phases_and_a_16th_by_gathering() -> None:
    ring = sent("dense", 4 * SCALARS, members=4)
    packed = SCALARS // 8  # scales left out
    assert ring / sent("two-phase", packed, members=4) == 32
    assert ring / sent("gather", packed, members=4) == 16


def test_an_up_link_carries_each_anchor_once(crew: Crew, racks: Laboratory) -> None:
    crew.call(prepare, "2x2", ["dense", "dense"])
    before = racks.counters()
    crew.call(average)
    crossed = racks.counters() - before
    anchor = 4 * SCALARS
    for up_link in crossed.racks:
        assert anchor <= up_link.sent < OVERHEAD * anchor
        assert anchor <= up_link.received < OVERHEAD * anchor
