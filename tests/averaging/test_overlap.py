"""Gradients that are averaged in slices while backward runs: the same means, sooner."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from localsgd.averaging import overlap
from localsgd.averaging.level import Level
from localsgd.averaging.overlap import Overlapped, slices_of
from localsgd.averaging.placement import placement_of
from localsgd.train.config.plan import Plan
from localsgd.train.engine.assembly import assemble
from localsgd.train.engine.hosted import Inner, Workers
from localsgd.wire import InProcess, Pending
from tests.distributed.harness import run
from tests.problems import loss_on, net, no_decay
from tests.runs import digits, tiny


def workers_on(model: nn.Module) -> Workers:
    inner = Inner(lambda groups: torch.optim.SGD(groups, lr=1.0), no_decay=no_decay(model))
    return Workers(
        model, lambda m, k, t: loss_on(m, torch.arange(4) + 9 * k + t), inner, range(2), 8
    )


def test_slices_follow_the_backward_pass_and_cover_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "SLICE", 8 * 32)
    workers = workers_on(net("conv"))
    names = [name for name, _ in workers.models[0].named_parameters()]
    slices = slices_of(workers.layout, names, multiple=8)
    assert len(slices) > 3
    whole = sorted(slices)
    assert (whole[0][0], whole[-1][1]) == (0, workers.layout.length)
    assert all(left[1] == right[0] for left, right in pairwise(whole))
    offsets = {slot.name: slot.offset for slot in workers.layout.slots}
    where = {
        name: next(i for i, (a, b) in enumerate(slices) if a <= offset < b)
        for name, offset in offsets.items()
    }
    # The last layer sets out first; what batch norm has at the row's end waits for the first one.
    assert where["7.weight"] < where["0.weight"]
    assert where["7.weight"] < where["1.weight"]


class Watching(InProcess):
    """Sums, and notes for each sum whether the first layer had its gradient by then."""

    def __init__(self, members: int, first: Tensor) -> None:
        super().__init__(members)
        object.__setattr__(self, "seen", [])
        object.__setattr__(self, "first", first)

    seen: list[bool]
    first: Tensor

    def sum(self, x: Tensor) -> Pending[Tensor]:
        self.seen.append(bool(self.first.any()))
        return super().sum(x)


def test_slices_set_out_before_the_pass_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "SLICE", 8 * 32)
    workers, plain = workers_on(net("conv")), workers_on(net("conv"))
    model = workers.models[-1]
    collective = Watching(2, next(iter(workers.layout.views(workers.grads[-1]).values())))
    level = Level(workers.grads.unsqueeze(0), collective)
    found = overlap.overlapped(level, model, workers.layout, 8)
    assert isinstance(found, Overlapped)
    reference = Level(plain.grads.unsqueeze(0), InProcess(2))
    for _ in range(2):
        found.expect()
        workers.backward()
        for gradients in (found, reference):
            if gradients is reference:
                plain.backward()
            gradients.average()
            gradients.share()
        assert torch.equal(workers.grads, plain.grads)
        assert collective.seen[0] is False
        assert collective.seen[-1] is True
        collective.seen.clear()
    workers.backward()  # nobody expects anything
    assert collective.seen == []


def test_gradients_that_never_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "SLICE", 8 * 32)
    workers = workers_on(net("conv"))
    level = Level(workers.grads.unsqueeze(0), InProcess(2))
    found = overlap.overlapped(level, workers.models[-1], workers.layout, 8)
    found.expect()
    workers.grads.copy_(torch.arange(2.0)[:, None].expand_as(workers.grads))
    found.average()
    found.share()
    assert workers.grads.eq(0.5).all()


def trained_here(sliced: bool, settings: dict[str, Any]) -> tuple[Tensor, list[Any], bool]:
    wanted = tiny(model="small-cnn-4", **settings)
    task = digits(wanted.train_samples or 0)
    placement = placement_of(Plan(wanted, task.train_size).topology)
    with mock.patch.object(overlap, "SLICE", 1024 if sliced else 1 << 30):
        assembly = assemble(wanted, task, placement, torch.device("cpu"))
    assembly.advance()
    entries = [dataclasses.asdict(entry) for entry in assembly.ledger.levels]
    return assembly.workers.params, entries, isinstance(assembly.gradients[0], Overlapped)


@pytest.mark.parametrize(
    ("processes", "settings"),
    [
        (2, {"reduction": "exact"}),
        (4, {"reduction": "ordered"}),
        (4, {"reduction": "ordered", "topology": "2x2", "local_steps": (1, 2)}),
    ],
)
def test_many_processes_come_to_the_same_bits(processes: int, settings: dict[str, Any]) -> None:
    sliced = run(processes, trained_here, True, settings)
    whole = run(processes, trained_here, False, settings)
    for (own, entries, is_sliced), (params, plain, is_whole) in zip(sliced, whole, strict=True):
        assert (is_sliced, is_whole) == (True, False)
        assert torch.equal(own, params)
        assert [entry["bytes"] for entry in entries] == [entry["bytes"] for entry in plain]
        assert entries[0]["calls"] > plain[0]["calls"]


def test_one_process_has_nothing_to_hide() -> None:
    assert trained_here(True, {})[2] is False
