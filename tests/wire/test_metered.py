"""The ledger: the same payload for a run, wherever its workers are hosted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from localsgd.reduce import CompressedMean, ExactMean, OrderedMean, Reducer, Sign
from localsgd.schedule.fixed import every
from localsgd.wire import InProcess, Ledger, Metered
from localsgd.wire.metered import Entry
from tests.cases import Assembled, Case, carried_out


@pytest.mark.parametrize("reducer", [ExactMean, OrderedMean])
@pytest.mark.parametrize("average", ["models", "gradients"])
@pytest.mark.parametrize(
    ("topology", "processes"), [("8", 2), ("4x2", 4), ("2x4", 4), ("2x2x2", 4), ("2+1+1", 4)]
)
def test_payload_of_a_run_does_not_depend_on_hosting(
    topology: str, processes: int, average: str, reducer
) -> None:
    levels = 2 if "+" in topology else topology.count("x") + 1
    schedules = (every(1), every(2), every(2))[:levels]
    case = Case(topology, schedules, steps=4, average=average, reducer=reducer)
    here, there = carried_out(case), carried_out(case, processes)
    assert here.bytes == there.bytes
    assert here.calls == there.calls
    assert min(here.bytes) > 0


def test_a_dense_sync_is_one_row_from_each_member() -> None:
    case = Case("4x2", (every(2), every(2)), steps=8)
    row = Assembled.of(case).workers.params[0].nbytes
    outcome = carried_out(case)
    assert outcome.calls == (4, 2)
    assert outcome.bytes == (4 * row, 2 * row)


def test_where_blocks_differ_the_ledger_is_that_of_the_first() -> None:
    case = Case("2+1+3", (every(1), every(2)), steps=4)
    row = Assembled.of(case).workers.params[0].nbytes
    outcome = carried_out(case)
    assert outcome.calls == (4, 2)
    assert outcome.bytes == (4 * row, 2 * row)


def test_a_level_of_one_member_sends_nothing() -> None:
    outcome = carried_out(Case("8x1", (every(1), every(2)), steps=4))
    assert outcome.bytes[0] == 0
    assert outcome.bytes[1] > 0


@pytest.mark.parametrize(
    ("make", "sent", "arrived"),
    [
        (ExactMean, 96, 2 * 3 * 96 // 4),
        (OrderedMean, 3 * 24 + 24, 3 * 24 + 3 * 24),
        # 12 bits to 2 bytes, after a scale of 8.
        (lambda: CompressedMean(Sign(), way="gather"), 10, 3 * 10),
        # Chunks of 8 scalars, the second half full, the others empty: each payload is 8 + 1 bytes.
        # One byte of the second phase says whether the member's update is finite.
        (lambda: CompressedMean(Sign(), way="two-phase"), 3 * 9 + 10, 3 * 9 + 3 * 10),
    ],
    ids=["sum", "exchange and gather", "gather", "two phases"],
)
def test_what_arrives_goes_by_the_kind_of_call(
    make: Callable[[], Reducer], sent: int, arrived: int
) -> None:
    """For M = 4 members of 12 scalars; who learns its place beforehand sends 8 bytes to each."""
    entry = Entry()
    reducer, wire = make(), Metered(InProcess(4), entry)
    for _ in range(2):  # Places are learnt once.
        before = replace(entry)
        reducer.reduce(torch.ones(1, 4, 12, dtype=torch.float64), None, wire).wait()
    assert ((entry - before).bytes, (entry - before).arrived) == (sent, arrived)


def test_a_level_of_one_member_receives_nothing() -> None:
    entry = Entry()
    Metered(InProcess(1), entry).gather(torch.ones(1, 1, 8)).wait()
    Metered(InProcess(1), entry).sum(torch.ones(1, 1, 8)).wait()
    assert (entry.calls, entry.bytes, entry.arrived) == (2, 0, 0)


def test_seconds_are_those_of_the_start_and_of_the_wait() -> None:
    ticks = iter([1.0, 2.0, 10.0, 14.0])

    entry = Entry()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localsgd.wire.metered.time.perf_counter", lambda: next(ticks))
        Metered(InProcess(2), entry).sum(torch.ones(1, 2, 3)).wait()
    assert entry.seconds == 1.0 + 4.0


def test_ledgers_add_up_and_subtract() -> None:
    ledger = Ledger.of(2)
    ledger.levels[0] = Entry(3, 100, 0.5)
    ledger.levels[1] = Entry(1, 10, 0.25)
    assert (ledger.bytes, ledger.seconds) == (110, 0.75)
    assert ledger.levels[0] - ledger.levels[1] == Entry(2, 90, 0.25)
