"""`LocalSGD` with an engine for workers that come and go: what needs no second worker.

What needs several, and their losses, is in `tests/integrations`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import localsgd
from localsgd import LocalSGD
from localsgd.errors import PeerLost, UserError
from localsgd.optimizer.membership import Meeting, Membership, Standing
from localsgd.reduce import CompressedMean, ExactMean, PowerSgd, Reducer, Sign
from localsgd.wire import InProcess
from localsgd.wire.engine import Broken, Momenta


class One:
    """The peers of a worker that is alone."""

    rank, size = 0, 1

    def sum(self, x: Tensor) -> None: ...
    def share(self, x: Tensor, source: int) -> None: ...
    def swap(self, sent: dict[int, Tensor], received: dict[int, Tensor]) -> None: ...
    def gather(self, x: Tensor) -> Tensor:
        return x[None].clone()


class Alone:
    """An engine whose worker is alone; the syncs in `fails` do not count at first."""

    def __init__(self, workers: int | None = None, fails: tuple[int, ...] = ()) -> None:
        self.name, self.workers, self.momenta = "w", workers, "copy"
        self.momenta: Momenta
        self.begins = True
        self.syncs = 0
        self.fails = list(fails)
        self.gone = False
        self.save: Callable[[], Any]
        self.take: Callable[[Any], None]

    def keep(self, save: Callable[[], Any], load: Callable[[Any], None]) -> None:
        self.save, self.take = save, load

    def meet(self) -> One:
        return One()

    def settle(self, failure: Exception | None) -> bool:
        if failure is not None or self.syncs in self.fails:
            self.fails = [s for s in self.fails if s != self.syncs]
            return False
        self.syncs += 1
        return True

    def leave(self) -> None:
        self.gone = True

    def state(self) -> dict[str, Any]:
        return {"syncs": self.syncs}

    def load(self, state: dict[str, Any]) -> None:
        self.syncs = state["syncs"]


class Fixed(Reducer):
    """Does not say that its members may change."""

    def reduce(self, update: Tensor, weights: Any, collective: Any) -> Any:
        raise AssertionError


def made(engine: Alone, **options: Any) -> tuple[nn.Module, LocalSGD]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    options = {"local_steps": 4, **options}
    return model, LocalSGD(inner, model, fault_tolerance=engine, **options)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(8, 3, generator=draw, dtype=torch.float64)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def test_alone_it_is_the_inner_optimizer_however_often_a_sync_fails() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    steps(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), 0, 10)
    model, optimizer = made(Alone(fails=(0, 1, 2)))
    steps(model, optimizer, 0, 10)
    shown = weights(model)
    with optimizer.averaged_model():
        assert not torch.equal(weights(model), shown)  # of the last sync, two steps ago
    assert torch.equal(weights(model), weights(plain))
    optimizer.finish()
    with optimizer.averaged_model():
        assert torch.equal(weights(model), weights(plain))
    assert optimizer.membership is not None
    assert optimizer.membership.syncs == 4  # with that of the start


@pytest.mark.parametrize("call", [localsgd.save, localsgd.load])
def test_what_saves_for_all_ranks_is_refused(call: Callable[..., Any], tmp_path: Path) -> None:
    """Each worker is the only rank of its group, and all would write one folder."""
    model, optimizer = made(Alone())
    with pytest.raises(UserError, match=r"save optimizer.state_dict\(\) and the model's"):
        call(tmp_path / "save", model, optimizer)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{}, {"reducer": "ef-sign"}, {"outer": "slowmo"}])
def test_a_saved_run_goes_on_as_it_would_have(options: dict[str, Any]) -> None:
    model, optimizer = made(Alone(), **options)
    steps(model, optimizer, 0, 6)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    steps(model, optimizer, 6, 13)
    again, other = made(Alone(), **options)
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    with other.averaged_model():
        steps_seen = weights(again)
    assert not torch.equal(steps_seen, weights(again))
    steps(again, other, 6, 13)
    assert torch.equal(weights(again), weights(model))
    assert optimizer.membership is not None
    assert other.membership is not None
    assert other.membership.batch == optimizer.membership.batch == 13
    assert other.membership.syncs == optimizer.membership.syncs


def test_a_failed_sync_leaves_error_memories_as_they_were() -> None:
    runs = [made(Alone(fails=fails), reducer="ef-sign") for fails in ((), (1, 2))]
    for model, optimizer in runs:
        steps(model, optimizer, 0, 12)
    [(one, _), (other, _)] = runs
    assert torch.equal(weights(one), weights(other))


def test_without_it_nothing_is_copied_and_nothing_sent_beside_the_syncs() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), model, local_steps=4)
    [level] = optimizer._models._parts()
    assert level.members.data_ptr() == level.anchor.data_ptr() == model.weight.data_ptr()
    assert optimizer.membership is None
    assert "membership" not in optimizer.state_dict()["local_sgd"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"average": "gradients", "local_steps": 1}, "models are averaged, also where H = 1"),
        ({"delay": localsgd.Delay(syncs=1)}, "a mean can't be on its way"),
        ({"inner_state": "momentum_buffer=average"}, "inner states are kept or reset"),
        ({"reducer": Fixed()}, "has a memory that fits its members alone"),
        ({"outer": "bmuf"}, "needs K for its momentum"),
        ({"topology": "2x2"}, "topology 2x2 has 4 workers"),
    ],
)
def test_what_can_not_work_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        made(Alone(), **options)


def test_a_run_that_nobody_can_go_on_with_says_so() -> None:
    model, optimizer = made(Alone())
    steps(model, optimizer, 0, 3)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(UserError, match="weights that are not finite at sync 2, and nobody else"):
        steps(model, optimizer, 3, 4)
    assert optimizer.membership is not None
    assert optimizer.membership.engine.gone  # type: ignore[attr-defined]


def test_a_sync_that_never_counts_ends() -> None:
    engine = Alone()
    model, optimizer = made(engine, timeout=0.05)
    engine.settle = lambda failure: False  # type: ignore[method-assign]
    with pytest.raises(PeerLost, match="no sync has come to an end"):
        steps(model, optimizer, 0, 4)


def test_one_that_has_left_is_told_so() -> None:
    model, optimizer = made(Alone())
    assert optimizer.membership is not None
    optimizer.membership.leave()
    steps(model, optimizer, 0, 4)
    assert optimizer.membership.left
    with pytest.raises(UserError, match="has left the run"):
        steps(model, optimizer, 4, 5)


def test_regrouped_memories_add_the_same_to_means() -> None:
    """1/K' sum e' = 1/K sum e + sum o, with each owner's memory in its own chunk."""
    reducer = CompressedMean(Sign(), way="two-phase")
    update = torch.randn(1, 4, 48, dtype=torch.float64)
    reducer.reduce(update, None, InProcess(4)).wait()
    state = {k: v.clone() for k, v in reducer.state().items() if isinstance(v, Tensor)}
    whole = state["error"].sum(1) / 4
    for member, place in enumerate(state["place"][0].tolist()):
        length = state["owner_error"].shape[-1]
        start = min(48, place * length)
        stop = min(48, start + length)
        whole[0, start:stop] += state["owner_error"][0, member, : stop - start]
    reducer.regroup(4, 3)
    after = reducer.state()
    assert set(after) == {"feedback", "syncs", "error"}
    assert torch.allclose(after["error"].sum(1) / 3, whole, rtol=0, atol=1e-14)
    reducer.regroup(0, 3)
    assert "error" not in reducer.state()


def standing(name: str, **changes: Any) -> Standing:
    usual = {
        "alike": "a",
        "syncs": 3,
        "trained": True,
        "holds": True,
        "finite": True,
        "steps": 4,
        "given": 16,
        "leaves": False,
        "memory": 0.0,
    }
    return Standing(name, **{**usual, **changes})


class Several(One):
    def __init__(self, *others: Standing) -> None:
        self.others = others
        self.size = 1 + len(others)

    def gather(self, x: Tensor) -> Tensor:
        return torch.stack([x, *(other.packed() for other in self.others)])


def met(own: dict[str, Any], *others: Standing) -> tuple[Membership, Meeting]:
    engine = Alone()
    engine.syncs = 3
    engine.meet = lambda: Several(*others)  # type: ignore[method-assign]
    membership = Membership(engine, "a", **own)
    return membership, membership.meet(True, 0.0)


def test_those_who_have_the_last_model_and_have_trained_contribute() -> None:
    others = (standing("x"), standing("new", trained=False), standing("behind", syncs=2))
    membership, meeting = met({"trained": True}, *others)
    assert meeting.contributors == [0, 1]
    assert membership.collective.members == 2
    assert meeting.has_guests


def test_no_holder_of_the_model_ends_the_run() -> None:
    with pytest.raises(UserError, match="no worker is left that holds the model of sync 3"):
        met({"holds": False}, standing("x", trained=False, holds=False))


def test_others_settings_break_the_sync_for_those_who_fit() -> None:
    with pytest.raises(Broken, match="x came with another model"):
        met({"trained": True}, standing("x", alike="b", trained=False))
    with pytest.raises(UserError, match="this worker has another model"):
        met({}, standing("x", alike="b"))


def test_a_newcomer_that_does_not_fit_is_told_before_it_takes_anything() -> None:
    engine, other = Alone(), Alone()
    made(engine)
    model, _ = made(other, local_steps=8)
    before = weights(model)
    with pytest.raises(UserError, match=r"this worker has another model or other settings than"):
        other.take(engine.save())
    assert torch.equal(weights(model), before)
    fits = Alone()
    made(fits)
    fits.take(engine.save())
    with pytest.raises(UserError, match="what another worker has sent is damaged"):
        fits.take({**engine.save(), "inner": {"param_groups": []}})


def test_reducers_say_whether_members_may_change() -> None:
    assert ExactMean().members_may_change
    assert CompressedMean(Sign()).members_may_change
    assert PowerSgd().members_may_change
