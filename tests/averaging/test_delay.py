"""Means that arrive late, beside a loop that keeps everything that was ever sent.

Shapes: K workers · n scalars of a row.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from localsgd import LocalSGD, UserError, outer
from localsgd.averaging.build import build_levels
from localsgd.averaging.delay import Delay, Fragmented
from localsgd.averaging.level import Spare, average_and_share, final_sync
from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.reduce import CompressedMean, OrderedMean, Sign
from localsgd.rows.layout import Layout
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, loss_of, net, values

K, N, TURNS = 4, 96, 11
MULTIPLE = 32  # of topology 4: rows are multiples of 8 K


def start() -> Tensor:
    draw = torch.Generator().manual_seed(7)
    return torch.randn(N, generator=draw, dtype=torch.float64).repeat(K, 1)


def training(turn: int) -> Tensor:
    """What local steps add to all rows before the `turn`-th sync."""
    draw = torch.Generator().manual_seed(turn)
    return torch.randn(K, N, generator=draw, dtype=torch.float64)


def level(rows: Tensor, delay: Delay, **options: Any) -> Any:
    [made] = build_levels(placement_of(Topology.parse(K)), rows, delay=delay, **options)
    return made


def by_hand(delay: Delay, momentum: float = 0.0, rate: float = 1.0) -> Tensor:
    """The rows after all turns and the last sync, with outer momentum on each fragment."""
    rows, count = start(), delay.fragments
    bounds = [(N // MULTIPLE * i // count * MULTIPLE) for i in range(count)] + [N]
    anchor, velocity = rows[0].clone(), torch.zeros(N, dtype=torch.float64)
    travelling: list[tuple[slice, Tensor, Tensor]] = []

    def moved(part: slice, sent: Tensor) -> Tensor:
        velocity[part] = momentum * velocity[part] + (anchor[part] - sent.mean(0))
        anchor[part] = anchor[part] - rate * velocity[part]
        return anchor[part].clone()

    def arrive() -> None:
        part, sent, mean = travelling.pop(0)
        rows[:, part] += delay.correction * (mean - sent)

    for turn in range(TURNS):
        rows += training(turn)
        part = slice(bounds[turn % count], bounds[turn % count + 1])
        if len(travelling) == delay.syncs and travelling:
            arrive()
        sent = rows[:, part].clone()
        travelling.append((part, sent, moved(part, sent)))
        if not delay.syncs:
            arrive()
    while travelling:
        arrive()
    for index in range(count):
        part = slice(bounds[index], bounds[index + 1])
        rows[:, part] = moved(part, rows[:, part].clone())
    return rows


@pytest.mark.parametrize(("fragments", "syncs"), [(1, 0), (1, 1), (3, 0), (3, 1), (3, 2), (3, 3)])
@pytest.mark.parametrize(("momentum", "correction"), [(0.0, 1.0), (0.5, 1.0), (0.0, 0.5)])
def test_syncs_by_hand(fragments: int, syncs: int, momentum: float, correction: float) -> None:
    rows, delay = start(), Delay(fragments, syncs, correction)
    outers = [outer.sgd(0.7, momentum)] if momentum else None
    made = level(rows, delay, outers=outers)
    for turn in range(TURNS):
        rows += training(turn)
        average_and_share([made])
    final_sync([made])
    expected = by_hand(delay, momentum, 0.7 if momentum else 1.0)
    torch.testing.assert_close(rows, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(rows, rows[:1].expand_as(rows))
    assert not made.may_differ


def test_no_delay_and_one_fragment_is_the_plain_level() -> None:
    assert not isinstance(level(start(), Delay(1, 0)), Fragmented)


def test_what_was_trained_while_the_mean_was_on_its_way_is_kept() -> None:
    rows = start()
    made = level(rows, Delay(1, 1))
    rows += training(0)
    sent = rows.clone()
    average_and_share([made])
    assert torch.equal(rows, sent)  # nothing has arrived
    rows += training(1)
    average_and_share([made])
    expected = sent.mean(0) + training(1)
    torch.testing.assert_close(rows, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("delay", [Delay(1, 1), Delay(3, 2)])
@pytest.mark.parametrize("options", ["plain", "outer", "sign"])
def test_saved_at_any_turn_it_goes_on_to_the_same_bits(delay: Delay, options: str) -> None:
    made_with: dict[str, Any] = {
        "plain": {},
        "outer": {"outers": [outer.slowmo(0.5)]},
        "sign": {"reducers": [CompressedMean(Sign())]},
    }[options]
    rows = start()
    one = level(rows, delay, **copy.deepcopy(made_with))
    for turn in range(TURNS):
        rows += training(turn)
        average_and_share([one])
        if turn == 4:
            saved = copy.deepcopy(one.state())
            others = rows.clone()
            other = level(others, delay, **copy.deepcopy(made_with))
            other.load(saved)
    final_sync([one])
    for turn in range(5, TURNS):
        others += training(turn)
        average_and_share([other])
    final_sync([other])
    assert torch.equal(rows, others)


def signs(rows: Tensor) -> Tensor:
    """The mean over workers of (||u_k||_1 / N) sign(u_k)."""
    return (rows.abs().mean(1, keepdim=True) * rows.sign()).mean(0)


def test_the_last_sync_is_not_compressed() -> None:
    """The mean that is under way was; what is left then is averaged exactly."""
    rows = start()
    made = level(rows, Delay(1, 1), reducers=[CompressedMean(Sign())])
    rows += training(0)
    average_and_share([made])
    rows += training(1)
    final_sync([made])
    expected = start()[0] + signs(training(0)) + training(1).mean(0)
    torch.testing.assert_close(rows, expected.expand_as(rows), rtol=1e-12, atol=1e-12)


def test_fragments_that_take_turns_end_with_the_exact_mean() -> None:
    rows = start()
    made = level(rows, Delay(3, 0), reducers=[CompressedMean(Sign())])
    for turn in range(4):
        rows += training(turn)
        average_and_share([made])
    rows += training(4)
    expected = rows.mean(0)
    final_sync([made])
    torch.testing.assert_close(rows, expected.expand_as(rows), rtol=1e-12, atol=1e-12)
    assert all(isinstance(one.reducer, CompressedMean) for one in made.levels)


def test_an_outer_level_may_be_delayed_over_plain_blocks() -> None:
    rows = start()
    levels = build_levels(placement_of(Topology.parse("2x2")), rows, delay=Delay(1, 1))
    rows += training(0)
    average_and_share(levels[:1])
    blocks = rows.clone()
    assert torch.equal(rows[0], rows[1])
    average_and_share(levels)
    rows += training(1)
    average_and_share(levels)
    trained = training(1).view(2, 2, N).mean(1).repeat_interleave(2, 0)
    expected = blocks.mean(0) + trained
    torch.testing.assert_close(rows, expected, rtol=1e-12, atol=1e-12)
    final_sync(levels, first=1)
    assert torch.equal(rows, rows[:1].expand_as(rows))


def test_gamma_is_that_of_the_fragments_own_round() -> None:
    """While a mean is on its way the next round begins, with another learning rate."""
    rows = start()
    made = level(rows, Delay(1, 1), outers=[outer.block_momentum(0.5)])
    velocity, anchor, sent = torch.zeros(N, dtype=torch.float64), start()[0], None
    made.begin_round(0.1)
    gamma = of_sent = 0.1
    for turn, following in enumerate((0.2, 0.05, 0.4)):
        rows += training(turn)
        before = rows.clone()
        average_and_share([made])
        if sent is not None:
            velocity = 0.5 * velocity + (anchor - sent.mean(0)) / of_sent
            anchor = anchor - of_sent * velocity
            torch.testing.assert_close(rows, before + anchor - sent, rtol=1e-12, atol=1e-12)
        sent, of_sent = rows.clone(), gamma
        made.begin_round(following)
        gamma = following


def test_each_fragment_has_the_gamma_of_its_own_round() -> None:
    """Rounds of two fragments begin with the first turn, then when the fragment has averaged.

    u <- u/2 + mean Δ/γ, w <- w - γ u.
    """
    rows, rates = start(), [0.1, 0.4, 0.05, 0.2, 0.3]
    made = level(rows, Delay(2, 0), outers=[outer.block_momentum(0.5)])
    parts, gammas = [slice(0, 32), slice(32, N)], [0.1, 0.1]
    anchor, velocity = start()[0], torch.zeros(N, dtype=torch.float64)
    made.begin_round(rates[0])
    for turn, following in enumerate(rates[1:]):
        rows += training(turn)
        part, gamma = parts[turn % 2], gammas[turn % 2]
        velocity[part] = velocity[part] / 2 + (anchor - rows.mean(0))[part] / gamma
        anchor[part] -= gamma * velocity[part]
        average_and_share([made])
        torch.testing.assert_close(rows[0, part], anchor[part], rtol=1e-12, atol=1e-12)
        made.begin_round(following)
        gammas[turn % 2] = following


@pytest.mark.parametrize("delay", [Delay(2, 0), Delay(2, 1)])
@pytest.mark.parametrize("how", ["finish", "follow"])
def test_all_fragments_begin_a_round_where_all_members_are_equal(delay: Delay, how: str) -> None:
    """After the last sync the next learning rate is that of all fragments."""
    rows = start()
    made = level(rows, delay, outers=[outer.block_momentum(0.0)])
    made.begin_round(0.1)
    for turn in range(3):
        rows += training(turn)
        average_and_share([made])
    final_sync([made])
    if how == "follow":
        rows.copy_(training(9)[:1].expand_as(rows))
        made.catch_up()
    made.begin_round(0.01)
    assert [part.state()["learning_rate"] for part in made.levels] == [0.01, 0.01]


def test_what_leaves_nobody_out_keeps_a_member_that_is_finite_there() -> None:
    """The first fragment is of one tensor, and has no scalar to spare."""
    layout = Layout.of([("a", torch.zeros(64)), ("b", torch.zeros(10))], multiple=16)
    rows = layout.rows(2, "cpu")
    rows[0, :74], rows[1, :74] = 1.0, 3.0
    rows[1, 70] = torch.nan
    said: list[str] = []
    spare = Spare(layout.gaps, lambda: said.append("left out"), lambda: said.append("refused"))
    placement = placement_of(Topology.parse("2"))
    [level] = build_levels(placement, rows, delay=Delay(2), spare=spare)
    final_sync([level])
    assert said == ["left out"]
    assert torch.equal(rows[:, :32], torch.full((2, 32), 2.0))
    assert torch.equal(rows[:, 64:74], torch.ones(2, 10))


def test_a_last_sync_that_is_refused_leaves_the_compressor() -> None:
    rows = start()

    def refuse() -> None:
        raise UserError("refused")

    spare = Spare([], says=lambda: None, refuse=refuse)
    made = level(rows, Delay(3, 0), reducers=[CompressedMean(Sign())], spare=spare)
    average_and_share([made])
    rows[1, 5] = torch.nan
    with pytest.raises(UserError, match="refused"):
        final_sync([made])
    assert all(isinstance(one.reducer, CompressedMean) for one in made.levels)


@pytest.mark.parametrize("delay", [Delay(1, 1), Delay(3, 0), Delay(3, 2)])
def test_members_that_were_moved_alike_are_followed(delay: Delay) -> None:
    """Nothing is trained from there, so that nothing moves."""
    rows = start()
    made = level(rows, delay, outers=[outer.sgd(0.5, 0.9)])
    rows.copy_(training(0)[:1].expand_as(rows))
    made.catch_up()
    for _ in range(4):
        average_and_share([made])
    final_sync([made])
    assert torch.equal(rows, training(0)[:1].expand_as(rows))


@pytest.mark.parametrize(("correction", "factor"), [(1.0, -1.3), (0.5, -0.8)])
def test_a_deviation_is_multiplied_by_what_steps_make_of_it_less_the_correction(
    correction: float, factor: float
) -> None:
    """Local steps that overshoot by 0.3: with the whole correction workers part, with half not."""
    rows = start()
    rows += training(0)
    mean = rows.mean(0, keepdim=True)
    made = level(rows, Delay(1, 1, correction))
    average_and_share([made])
    before = rows - mean
    rows.copy_(mean - 0.3 * before)
    average_and_share([made])
    torch.testing.assert_close(rows - mean, factor * before, rtol=1e-12, atol=1e-12)


def late(keywords: dict[str, Any]) -> dict[str, Any]:
    """Nine steps of a worker; its model in the middle, the averaged one then, and the final one."""
    model = net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = LocalSGD(inner, model, reducer=[OrderedMean()], **keywords)
    found: dict[str, Any] = {}
    for step in range(9):
        if step == 6:
            found["own"] = {n: v.clone() for n, v in values(model).items()}
            with optimizer.averaged_model():
                found["averaged"] = {n: v.clone() for n, v in values(model).items()}
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), step).backward()
        optimizer.step()
    optimizer.finish()
    found["final"] = {n: v.clone() for n, v in values(model).items()}
    found["calls"] = optimizer.ledger.levels[0].calls
    return found


CASES = [
    {"local_steps": 3, "delay": Delay(1, 1)},
    {"local_steps": 1, "delay": Delay(2, 1)},
    {"local_steps": 1, "delay": Delay(2, 0)},
]


def all_late() -> list[dict[str, Any]]:
    return [late(case) for case in CASES]


def test_four_processes_end_with_one_model_and_show_their_mean_meanwhile() -> None:
    ranks = run(4, all_late)
    for case in range(len(CASES)):
        found = [rank[case] for rank in ranks]
        for rank in found:
            assert_bits(rank["final"], found[0]["final"])
            assert_bits(rank["averaged"], found[0]["averaged"])
        name = "0.weight"
        owns = torch.stack([rank["own"][name] for rank in found])
        assert not torch.equal(owns[0], owns[1])  # also right after a sync
        torch.testing.assert_close(found[0]["averaged"][name], owns.mean(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(Delay, 0), "cut into 0 fragments"),
        (partial(Delay, "4"), "fragments='4'. is no whole number; give one, such as fragments=4"),
        (partial(Delay, 1.5), "fragments=1.5. is no whole number"),
        (partial(Delay, True), "fragments=True. is no whole number"),
        (partial(Delay, 2, 1.0), "syncs=1.0. is no whole number"),
        (partial(Delay, 1, 1, "1"), "correction='1'. is no number"),
        (partial(Delay, 2, 3), "delay of 3 syncs with 2 fragments"),
        (partial(Delay, 1, 1, 0.0), "correction of 0.0"),
        (
            lambda: level(start(), Delay(1, 1, 0.5), outers=[outer.sgd(0.5)]),
            "leaves workers behind an anchor",
        ),
        (lambda: level(start(), Delay(4, 0)), "give at most 3"),
    ],
)
def test_mistakes(make, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()
