"""What every compressor promises inside `CompressedMean`, in every way over the wire and hosting.

Shapes: g groups · m members hosted here · M members · n scalars · c bytes of a payload.
"""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.basics.seeds import generator_for
from localsgd.reduce import (
    CompressedMean,
    MajorityVote,
    NotFinite,
    OrderedMean,
    PowerSgd,
    Reducer,
    Sign,
)
from localsgd.reduce.compressor import decode, encode
from localsgd.testing.compressor import kept
from localsgd.wire import Collective, InProcess, Metered, Pending
from localsgd.wire.metered import Entry
from tests.conformance.compressors import (
    KINDS,
    LAYOUT,
    ROW,
    STOCHASTIC,
    Kind,
    both_ways,
    drawn,
    every_kind,
    int8_drawn,
    updates,
)
from tests.distributed.crossing import Calls
from tests.distributed.harness import run


@dataclass
class Wire:
    """Counts the bytes that come in to one member, as an interface would."""

    inner: Collective
    bytes: int = 0

    @property
    def members(self) -> int:
        return self.inner.members

    def sum(self, x: Tensor) -> Pending[Tensor]:
        return self.inner.sum(x)

    def gather(self, x: Tensor) -> Pending[Tensor]:
        self.bytes += x[0, 0].nbytes * (self.members - 1)
        return self.inner.gather(x)

    def exchange(self, x: Tensor) -> Pending[Tensor]:
        self.bytes += x[0, 0].nbytes * (self.members - 1) // self.members
        return self.inner.exchange(x)


def everything() -> dict[str, Reducer]:
    """Every reducer with every compressor, in every way."""
    made: dict[str, Reducer] = {
        f"{kind.name}, {way}": CompressedMean(kind.compressor, way=way, layout=LAYOUT)  # type: ignore[arg-type]
        for kind in [*KINDS, STOCHASTIC]
        for way in ("gather", "two-phase")
    }
    made["majority"] = MajorityVote(layout=LAYOUT)
    made["power-sgd"] = PowerSgd(LAYOUT, 2, mean=OrderedMean())
    return made


@every_kind
def test_gathers_the_mean_of_what_payloads_stand_for(kind: Kind) -> None:
    """The paper's average for signs: mean_k s^k p^k."""
    x = updates(2, 4)
    found = CompressedMean(kind.compressor, way="gather", layout=LAYOUT)
    expected = torch.stack([sum(kind.obvious(row, ROW) for row in group) / 4 for group in x])
    mean = found.reduce(x, None, InProcess(4)).wait()
    torch.testing.assert_close(mean, expected, rtol=1e-13, atol=1e-14)


def draw_of(purpose: str, sync: int, member: int) -> torch.Generator:
    return generator_for(3, purpose, sync, member)  # the seed of STOCHASTIC


def test_every_member_draws_anew_at_every_sync() -> None:
    """Members with equal updates send other roundings of them, and others the next time."""
    x = updates()
    reducer = CompressedMean(STOCHASTIC.compressor, way="gather", layout=LAYOUT, feedback=False)
    found = []
    for sync in (1, 2):
        mean = reducer.reduce(x.repeat(1, 4, 1), None, InProcess(4)).wait()[0].clone()
        each = [int8_drawn(x, draw_of("error", sync, member)) for member in range(4)]
        torch.testing.assert_close(mean, torch.stack(each).mean(0), rtol=1e-13, atol=1e-14)
        assert not any(torch.equal(each[0], other) for other in each[1:])
        found.append(mean)
    assert not torch.equal(found[0], found[1])


def test_owners_draw_apart_from_members() -> None:
    """Two members and phases: member j rounds the mean of the j-th half again."""
    x = updates(1, 2)
    reducer = CompressedMean(STOCHASTIC.compressor, way="two-phase", layout=LAYOUT, feedback=False)
    half = LAYOUT.length // 2
    draws = [draw_of("error", 1, member) for member in range(2)]
    expected = []
    for owner in range(2):
        part = x[0, :, owner * half : (owner + 1) * half]
        mean = sum(int8_drawn(own, draw) for own, draw in zip(part, draws, strict=True)) / 2
        expected.append(int8_drawn(mean, draw_of("owner_error", 1, owner)))
    found = reducer.reduce(x.clone(), None, InProcess(2)).wait()[0]
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-13, atol=1e-14)


@every_kind
def test_two_phases_compress_the_mean_of_each_chunk_again(kind: Kind) -> None:
    x = updates(2, 4)
    length = math.ceil(LAYOUT.length / 32) * 8
    expected = torch.zeros(2, LAYOUT.length, dtype=x.dtype)
    for start in range(0, LAYOUT.length, length):
        part = ROW.part(start, start + length)
        for group in range(2):
            rows = x[group, :, start : start + length]
            mean = sum(kind.obvious(row, part) for row in rows) / 4
            expected[group, start : start + length] = kind.obvious(mean, part)
    reducer = CompressedMean(kind.compressor, way="two-phase", layout=LAYOUT)
    mean = reducer.reduce(x, None, InProcess(4)).wait()
    torch.testing.assert_close(mean, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", [*KINDS, STOCHASTIC], ids=lambda kind: kind.name)
@both_ways
@pytest.mark.parametrize("bound", [True, False])
def test_sent_and_kept_are_what_was_given(kind: Kind, way: Any, bound: bool) -> None:
    """M · results + memories = all updates, after every sync."""
    n = LAYOUT.length if bound else 61
    reducer = CompressedMean(kind.compressor, way=way, layout=LAYOUT if bound else None)
    given = sent = torch.zeros(2, n, dtype=torch.float64)
    for sync in range(5):
        x = updates(2, 4, seed=sync) if bound else drawn(2, 4, n, seed=sync)
        given = given + x.sum(1)
        sent = sent + 4 * reducer.reduce(x, None, InProcess(4)).wait()
        torch.testing.assert_close(sent + kept(reducer, n, 4), given, rtol=0, atol=1e-12)
    assert float(kept(reducer, n, 4).abs().max()) > 1e-4


@every_kind
def test_each_member_keeps_what_its_own_payloads_lost(kind: Kind) -> None:
    """Per member: sum of C(v_k) + e_k = sum of u_k."""
    reducer = CompressedMean(kind.compressor, layout=LAYOUT, way="gather")
    codec = kind.compressor.codec(ROW, torch.float64)
    given = sent = error = torch.zeros(1, 3, LAYOUT.length, dtype=torch.float64)
    for sync in range(4):
        x = updates(1, 3, seed=sync)
        given = given + x
        sent = sent + decode(codec, encode(codec, x + error), x)
        reducer.reduce(x, None, InProcess(3)).wait()
        error = reducer.state()["error"].clone()
        torch.testing.assert_close(sent + error, given, rtol=0, atol=1e-12)


@every_kind
@both_ways
def test_without_feedback_nothing_is_kept(kind: Kind, way: Any) -> None:
    reducer = CompressedMean(kind.compressor, feedback=False, way=way, layout=LAYOUT)
    first = reducer.reduce(updates(1, 4), None, InProcess(4)).wait().clone()
    assert torch.equal(reducer.reduce(updates(1, 4), None, InProcess(4)).wait(), first)
    assert set(reducer.state()) == {"feedback", "syncs", "place"}


@every_kind
@both_ways
def test_weights_scale_updates(kind: Kind, way: Any) -> None:
    x, weights = (
        updates(2, 4),
        torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.25] * 4], dtype=torch.float64),
    )

    def mean(x: Tensor, weights: Tensor | None) -> Tensor:
        reducer = CompressedMean(kind.compressor, way=way, layout=LAYOUT)
        return reducer.reduce(x.clone(), weights, InProcess(4)).wait()

    assert torch.equal(mean(x, weights), mean(x * (4 * weights).unsqueeze(-1), None))
    assert torch.equal(mean(x, weights)[1], mean(x, None)[1])


@every_kind
@both_ways
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_refused_by_member_and_tensor(
    kind: Kind, way: Any, value: float
) -> None:
    x = updates(2, 4)
    x[1, 2, ROW.fragments[3].start + 7] = value
    reducer = CompressedMean(kind.compressor, way=way, layout=LAYOUT)
    with pytest.raises(
        NotFinite, match=r"^the update of member 2 of 4 is not finite in .*"
    ) as told:
        reducer.reduce(x, None, InProcess(4)).wait()
    assert "kernel" in str(told.value) or kind.name == "sign row"
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("members", [2, 4, 8])
def test_bytes_of_the_sign(members: int) -> None:
    """n/8 (M - 1) come in by gathering, 2 n/8 (M - 1)/M in two phases; and scales and flags."""
    n = 1024
    for way, incoming in (
        ("gather", (members - 1) * (n // 8 + 4)),
        ("two-phase", (members - 1) * (2 * (n // 8 // members + 4) + 1)),
    ):
        wire, entry = Wire(InProcess(members)), Entry()
        reducer = CompressedMean(Sign(), way=way)  # type: ignore[arg-type]
        metered = Metered(wire, entry)
        reducer.reduce(drawn(1, members, n).float(), None, metered).wait()
        once, entry.bytes, wire.bytes = 8 * (members - 1), 0, 0  # told its place, the first time
        reducer.reduce(drawn(1, members, n).float(), None, metered).wait()
        assert wire.bytes == incoming
        assert once < incoming
        # What a member hands over: its payload, or the others' chunks of it and then its own.
        chunks = members * (n // 8 // members + 4)
        assert entry.bytes == (n // 8 + 4 if way == "gather" else chunks + 1)


@pytest.mark.parametrize(
    ("members", "n", "rounds"), [(2, 800_000, 1), (4, 800, 1), (16, 800, 1), (4, 800_000, 2)]
)
def test_auto_gathers_little_and_shares_much(members: int, n: int, rounds: int) -> None:
    entry = Entry()
    reducer = CompressedMean(Sign(), feedback=False)
    x = torch.ones(1, members, n, dtype=torch.bfloat16)
    reducer.reduce(x, None, Metered(InProcess(members), entry)).wait()
    assert entry.calls == 1 + rounds  # the first tells members their places


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*everything()])
def test_half_precision_is_worked_on_in_float32(name: str, dtype: torch.dtype) -> None:
    """What a float32 run gives, rounded once; the memory loses nothing."""
    one, other = everything()[name], everything()[name]
    for seed in range(3):
        x = updates(1, 3, seed=seed).to(dtype)
        weights = torch.tensor([[0.5, 0.3, 0.2]]) if seed else None
        found = one.reduce(x.clone(), weights, InProcess(3)).wait()
        wide = other.reduce(x.float(), weights, InProcess(3)).wait()
        assert found.dtype == dtype
        assert torch.equal(found, wide.to(dtype))
    kept, expected = one.state(), other.state()
    for key, value in expected.items():
        same = torch.equal(kept[key], value) if isinstance(value, Tensor) else kept[key] == value
        assert same, key


class Asked(Calls):
    """Collects where the program waits for a number that a device has."""

    def counts(self, func: Any) -> bool:
        return func.overloadpacket.__name__ in ("_local_scalar_dense", "item", "nonzero")


@pytest.mark.parametrize("way", ["gather", "two-phase"])
@every_kind
def test_the_device_is_asked_once(kind: Kind, way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether payloads are finite, of however many blocks and members."""
    monkeypatch.setattr("localsgd.reduce.bfloat16.BLOCK", 16)
    reducer = CompressedMean(kind.compressor, way=way, layout=LAYOUT)
    reducer.reduce(updates(1, 4), None, InProcess(4)).wait()
    with Asked() as asked:
        reducer.reduce(updates(1, 4), None, InProcess(4)).wait()
    assert len(asked.names) == 1


# However the members are hosted


@dataclass
class Reduced:
    """What one level gave: members hosted here, results `[syncs, n]` and memories by name."""

    members: list[int]
    results: dict[str, Tensor] = field(default_factory=dict)
    states: dict[str, dict[str, Any]] = field(default_factory=dict)


def outermost(topology: str, syncs: int = 3) -> Reduced:
    """Syncs at the outermost level, whose only group has equal members however hosted."""
    parsed = Topology.parse(topology)
    placement = placement_of(parsed)
    where, size = placement.hosted_levels[-1], parsed.sizes[-1]
    inside = parsed.workers // size
    found = Reduced(sorted({worker // inside for worker in placement.workers}))
    for name, reducer in everything().items():
        results = []
        for sync in range(syncs):
            x = updates(1, size, seed=sync, dtype=torch.float32)[:, found.members]
            results.append(reducer.reduce(x, None, where.collective).wait()[0].clone())
        found.results[name] = torch.stack(results)
        found.states[name] = copy.deepcopy(reducer.state())
    return found


@pytest.mark.parametrize("topology", ["4", "8", "4x2", "2x2"])
def test_four_processes_give_these_bits(topology: str) -> None:
    """One or two members in each; and, in 2x2, members that two processes hold as copies."""
    here = outermost(topology)
    for there in run(4, outermost, topology):
        for name, results in here.results.items():
            assert torch.equal(there.results[name], results), name
            for key, value in here.states[name].items():
                mine = value[:, there.members] if isinstance(value, Tensor) else value
                theirs = there.states[name][key]
                same = torch.equal(theirs, mine) if isinstance(mine, Tensor) else theirs == mine
                assert same, f"{key} of {name}"


def refused_by_all() -> list[str]:
    """What each process is told where only member 3 has a NaN."""
    told = []
    placement = placement_of(Topology.parse("4"))
    for reducer in everything().values():
        x = updates(1, 4)
        x[0, 3, 20] = math.nan
        pending = partial(reducer.reduce, x[:, list(placement.workers)], None)
        with pytest.raises(NotFinite) as error:
            pending(placement.hosted_levels[0].collective).wait()
        told.append(str(error.value))
    return told


def test_all_processes_are_told_who_is_not_finite() -> None:
    first, *others = run(4, refused_by_all)
    assert all("member 3 of 4 is not finite in" in line for line in first)
    assert all(other == first for other in others)


@pytest.mark.parametrize("name", [*everything()])
def test_a_wait_starts_no_collective(name: str) -> None:
    """One process may wait alone, to save its state, also for an update that is not finite."""
    for value in (1.0, math.nan):
        x, entry = updates(2, 4), Entry()
        x[1, 2, 20] = value
        with pytest.raises(NotFinite) if math.isnan(value) else nullcontext():
            pending = everything()[name].reduce(x, None, Metered(InProcess(4), entry))
            calls = entry.calls
            with pytest.raises(NotFinite) if math.isnan(value) else nullcontext():
                pending.wait()
            assert entry.calls == calls
            if math.isnan(value):
                pending.wait()
