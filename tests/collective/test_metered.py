"""The ledger: the same payload for a run, wherever its workers are hosted."""

from __future__ import annotations

import pytest
import torch

from localsgd.collective import InProcess, Ledger, Metered
from localsgd.collective.metered import Entry
from localsgd.reduce import ExactMean, OrderedMean
from localsgd.schedule import every
from tests.cases import Assembled, Case, carried_out


@pytest.mark.parametrize("reducer", [ExactMean, OrderedMean])
@pytest.mark.parametrize("agree_on", ["models", "gradients"])
@pytest.mark.parametrize(
    ("topology", "processes"), [("8", 2), ("4x2", 4), ("2x4", 4), ("2x2x2", 4), ("2+1+1", 4)]
)
def test_payload_of_a_run_does_not_depend_on_hosting(
    topology: str, processes: int, agree_on: str, reducer
) -> None:
    levels = 2 if "+" in topology else topology.count("x") + 1
    schedules = (every(1), every(2), every(2))[:levels]
    case = Case(topology, schedules, steps=4, agree_on=agree_on, reducer=reducer)
    here, there = carried_out(case), carried_out(case, processes)
    assert here.bytes == there.bytes
    assert here.calls == there.calls
    assert min(here.bytes) > 0


def test_a_dense_agreement_is_one_row_from_each_member() -> None:
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


def test_seconds_are_those_of_the_start_and_of_the_wait() -> None:
    ticks = iter([1.0, 2.0, 10.0, 14.0])

    entry = Entry()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localsgd.collective.metered.time.perf_counter", lambda: next(ticks))
        Metered(InProcess(2), entry).sum(torch.ones(1, 2, 3)).wait()
    assert entry.seconds == 1.0 + 4.0


def test_ledgers_add_up_and_subtract() -> None:
    ledger = Ledger.of(2)
    ledger.levels[0] = Entry(3, 100, 0.5)
    ledger.levels[1] = Entry(1, 10, 0.25)
    assert (ledger.bytes, ledger.seconds) == (110, 0.75)
    assert ledger.levels[0] - ledger.levels[1] == Entry(2, 90, 0.25)
