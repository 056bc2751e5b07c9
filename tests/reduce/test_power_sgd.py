"""PowerSGD beside an obvious one: matrices by name, one member after the other."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.reduce import ExactMean, NotFinite, OrderedMean, PowerSgd
from localsgd.rows.layout import Layout
from localsgd.wire import Entry, InProcess, Metered

TENSORS = {"a": (6, 10), "bias": (6,), "kernel": (8, 2, 3, 3), "small": (2, 2)}
LAYOUT = Layout.of(
    [
        (name, torch.empty(shape).contiguous(memory_format=torch.channels_last))
        if len(shape) == 4
        else (name, torch.empty(shape))
        for name, shape in TENSORS.items()
    ]
)
LAYOUT = Layout(LAYOUT.slots, LAYOUT.length, torch.float64)
MATRICES = {"a": (6, 10), "kernel": (8, 18)}


def updates(members: int = 4, groups: int = 1, seed: int = 1) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    rows = torch.zeros(groups, members, LAYOUT.length, dtype=torch.float64)
    for group in rows:
        for row in group:
            for view in LAYOUT.views(row).values():
                view.copy_(torch.randn(view.shape, generator=draw, dtype=torch.float64))
    return rows


def matrix(row: Tensor, name: str) -> Tensor:
    slot = next(slot for slot in LAYOUT.slots if slot.name == name)
    return row[slot.offset : slot.offset + slot.length].view(MATRICES[name])


class Obvious:
    """The paper's algorithm for one group, with a Q that is given at the start."""

    def __init__(self, q: dict[str, Tensor], members: int) -> None:
        self.q = q
        self.errors = torch.zeros(members, LAYOUT.length, dtype=torch.float64)

    def mean(self, rows: Tensor) -> Tensor:
        given = rows + self.errors
        result = rows.mean(0)
        for name in MATRICES:
            matrices = [matrix(row, name) for row in given]
            p = torch.stack([m @ self.q[name] for m in matrices]).mean(0)
            basis = torch.linalg.qr(p).Q
            own = [m.T @ basis for m in matrices]
            for member, (m, right) in enumerate(zip(matrices, own, strict=True)):
                matrix(self.errors[member], name).copy_(m - basis @ right.T)
            self.q[name] = torch.stack(own).mean(0)
            matrix(result, name).copy_(basis @ self.q[name].T)
        return result


def first_q(reducer: PowerSgd) -> dict[str, Tensor]:
    flat, found, at = reducer._drawn(torch.empty(0, dtype=torch.float64))[0], {}, 0
    for name, (_, columns) in MATRICES.items():
        found[name] = flat[at : at + 2 * columns].view(columns, 2).clone()
        at += 2 * columns
    return found


def test_is_the_obvious_one() -> None:
    reducer = PowerSgd(LAYOUT, 2)
    obvious = Obvious(first_q(reducer), 4)
    for sync in range(4):
        x = updates(seed=sync)
        expected = obvious.mean(x[0])
        found = reducer.reduce(x, None, InProcess(4)).wait()[0]
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(
            reducer.state()["error"][0], obvious.errors, rtol=1e-11, atol=1e-11
        )


def test_sent_and_kept_are_what_was_given() -> None:
    reducer = PowerSgd(LAYOUT, 1)
    given = sent = torch.zeros(2, LAYOUT.length, dtype=torch.float64)
    for sync in range(5):
        x = updates(3, 2, seed=sync)
        given = given + x.sum(1)
        sent = sent + 3 * reducer.reduce(x, None, InProcess(3)).wait()
        kept = reducer.state()["error"].sum(1)
        torch.testing.assert_close(sent + kept, given, rtol=0, atol=1e-12)


class Counting(ExactMean):
    """A mean that counts its calls."""

    calls = 0

    def reduce(self, update, weights, collective):
        Counting.calls += 1
        return super().reduce(update, weights, collective)


def test_one_that_is_bound_keeps_all_its_settings() -> None:
    Counting.calls = 0
    given = PowerSgd(rank=1, feedback=False, mean=Counting(), seed=5)
    bound = given.bound(LAYOUT)
    assert repr(bound) == repr(given)
    found = bound.reduce(updates(), None, InProcess(4)).wait()
    assert Counting.calls == 2
    made = [PowerSgd(LAYOUT, 1, feedback=False, seed=seed) for seed in (5, 0)]
    same, other = [one.reduce(updates(), None, InProcess(4)).wait() for one in made]
    assert torch.equal(found, same)
    assert not torch.equal(found, other)
    assert "error" not in bound.state()


def test_a_seed_draws_another_q_for_every_matrix_alike() -> None:
    square = Layout.of([(name, torch.empty(6, 6)) for name in "ab"])
    q = PowerSgd(square, 1)._drawn(torch.empty(0))[0]
    assert not torch.equal(q[:6], q[6:])
    assert not torch.equal(q, PowerSgd(square, 1, seed=1)._drawn(torch.empty(0))[0])


def test_what_has_the_rank_passes_whole() -> None:
    x = updates()
    for name, (rows, columns) in MATRICES.items():
        thin = torch.arange(1.0, rows + 1, dtype=torch.float64).unsqueeze(1)
        for row in x[0]:
            matrix(row, name).copy_(thin * matrix(row, name)[:1, :columns])
    found = PowerSgd(LAYOUT, 1).reduce(x.clone(), None, InProcess(4)).wait()
    torch.testing.assert_close(found, x.mean(1), rtol=1e-12, atol=1e-12)


def test_is_not_linear_in_members_and_settles_on_a_constant_update() -> None:
    """Warm start: with feedback off, the same update is met better and better."""
    x = updates()
    reducer = PowerSgd(LAYOUT, 2, feedback=False)
    errors = [
        float((reducer.reduce(x.clone(), None, InProcess(4)).wait() - x.mean(1)).norm())
        for _ in range(30)
    ]
    best = math.sqrt(
        sum(
            float((torch.linalg.svdvals(matrix(x[0].mean(0), name))[2:] ** 2).sum())
            for name in MATRICES
        )
    )
    assert errors[0] > 1.05 * best
    assert errors[-1] == pytest.approx(best, rel=1e-2)
    assert set(reducer.state()) == {"feedback", "q"}


def test_a_tensor_that_rested_can_move_again() -> None:
    reducer = PowerSgd(LAYOUT, 2)
    rest = torch.zeros(1, 4, LAYOUT.length, dtype=torch.float64)
    assert not reducer.reduce(rest, None, InProcess(4)).wait().any()
    found = reducer.reduce(updates(), None, InProcess(4)).wait()[0]
    assert all(bool(matrix(found, name).any()) for name in MATRICES)


def test_weights_are_those_of_updates() -> None:
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    x = updates()
    found = PowerSgd(LAYOUT, 2).reduce(x.clone(), weights, InProcess(4)).wait()
    scaled = x * (4 * weights).unsqueeze(-1)
    assert torch.equal(found, PowerSgd(LAYOUT, 2).reduce(scaled, None, InProcess(4)).wait())
    bias = LAYOUT.views(found[0])["bias"]
    expected = sum(w * LAYOUT.views(row)["bias"] for w, row in zip(weights[0], x[0], strict=True))
    torch.testing.assert_close(bias, expected, rtol=1e-13, atol=1e-13)


def test_bytes() -> None:
    """P and vectors, then Q; 8 bytes each."""
    entry = Entry()
    PowerSgd(LAYOUT, 2).reduce(updates(), None, Metered(InProcess(4), entry)).wait()
    assert entry.calls == 2
    assert entry.bytes == 8 * (2 * (6 + 8) + 6 + 4 + 2 * (10 + 18))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_worked_on_in_float32(dtype: torch.dtype) -> None:
    """What a float32 run gives, rounded once; updates whose products float16 could not hold."""
    half = Layout(LAYOUT.slots, LAYOUT.length, dtype)
    one, other = PowerSgd(half, 2), PowerSgd(half, 2)
    for sync in range(3):
        x = (1e-5 * updates(seed=sync)).to(dtype)
        found = one.reduce(x.clone(), None, InProcess(4)).wait()
        expected = other.reduce(x.float(), None, InProcess(4)).wait()
        assert found.dtype == dtype
        assert torch.equal(found, expected.to(dtype))
    assert torch.equal(one.state()["error"], other.state()["error"])


@pytest.mark.parametrize("mean", [ExactMean(), OrderedMean()])
def test_state_moves_to_another(mean) -> None:
    one, other = PowerSgd(LAYOUT, 2, mean=mean), PowerSgd(LAYOUT, 2, mean=mean, seed=5)
    one.reduce(updates(), None, InProcess(4)).wait()
    other.load(copy.deepcopy(one.state()))
    first = one.reduce(updates(seed=2), None, InProcess(4)).wait()
    assert torch.equal(other.reduce(updates(seed=2), None, InProcess(4)).wait(), first)
    with pytest.raises(UserError, match="error feedback is on, but"):
        other.load({})


@pytest.mark.parametrize(
    ("rank", "says"),
    [
        (0, "rank 0 sends nothing"),
        (6, "rank 6 makes no tensor of this model smaller; give at most 5"),
    ],
)
def test_ranks_that_cannot_be_are_refused(rank: int, says: str) -> None:
    with pytest.raises(UserError, match=says):
        PowerSgd(LAYOUT, rank)


def test_models_without_matrices_are_refused() -> None:
    layout = Layout.of([("bias", torch.empty(7)), ("w", torch.empty(2, 2))])
    with pytest.raises(UserError, match="it has no matrix that is large enough"):
        PowerSgd(layout, 1)


@pytest.mark.parametrize("name", ["a", "bias", "kernel"])
def test_an_update_that_is_not_finite_is_refused(name: str) -> None:
    x = updates()
    LAYOUT.views(x[0, 2])[name][3] = math.nan
    with pytest.raises(NotFinite, match=f"update of member 2 of 4 is not finite in {name};"):
        PowerSgd(LAYOUT, 2).reduce(x, None, InProcess(4))
