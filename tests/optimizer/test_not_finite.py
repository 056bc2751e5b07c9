"""One rank's weights are not finite at a sync: the others' mean, and who it was."""

from __future__ import annotations

import re
import warnings
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from localsgd import Delay, LocalSGD, UserError, outer
from localsgd.reduce import CompressedMean, Int8, MajorityVote, NotFinite, PowerSgd, Sign
from tests.distributed.harness import run

pytestmark = pytest.mark.timeout(120)


def trained(keywords: dict[str, Any], culprit: int, steps: int, dtype: torch.dtype) -> Any:
    """Weights fall by the rank's number + 1 at each step; the culprit's first gradient is NaN."""
    model = nn.Linear(16, 16, bias=False, dtype=dtype)  # without a gap in its row
    nn.init.zeros_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = LocalSGD(inner, model, **{"local_steps": 2, **keywords})
    said = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            model.weight.grad = torch.full_like(model.weight, dist.get_rank() + 1.0)
            if step == 0 and dist.get_rank() == culprit:
                model.weight.grad[0, 0] = torch.nan
            try:
                optimizer.step()
            except UserError as error:
                said = str(error)
    return model.weight.detach().clone(), said or "".join(str(w.message) for w in caught)


class TwoKinds(nn.ModuleDict):
    """A row of each of two dtypes."""

    def __init__(self) -> None:
        clean = nn.Linear(4, 4, bias=False)
        super().__init__({"clean": clean, "bad": nn.Linear(4, 4, bias=False).double()})
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


def test_one_worker_alone_keeps_what_is_finite() -> None:
    """Nothing is averaged, and nobody could make up for what is left out."""
    model = TwoKinds()
    with torch.no_grad():
        model["bad"].weight[0, 0] = -torch.inf
    optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=1.0), model, local_steps=2)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        with optimizer.averaged_model():
            assert model["clean"].weight.isfinite().all()
    assert torch.equal(model["clean"].weight, torch.full((4, 4), -2.0))
    assert model["bad"].weight.isfinite().sum() == 15


def of_two_kinds() -> tuple[str, Tensor]:
    model = TwoKinds()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = LocalSGD(inner, model, local_steps=1, reducer="int8")
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, dist.get_rank() + 1.0)
    if dist.get_rank():
        model["bad"].weight.grad[0, 0] = torch.nan
    with pytest.raises(NotFinite) as caught:
        optimizer.step()
    return str(caught.value), model["clean"].weight.detach()


def test_a_compressed_update_that_is_refused_names_its_tensor_and_spoils_no_other() -> None:
    for said, clean in run(2, of_two_kinds):
        assert "member 1 of 2 is not finite in bad.weight" in said
        assert clean.isfinite().all()


def assert_all(weights: Tensor, value: float) -> None:
    torch.testing.assert_close(weights, torch.full_like(weights, value), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("keywords", [{}, {"outer": [outer.sgd(1.0)]}])
def test_an_error_on_all_ranks_who_hold_the_mean_of_the_others(keywords: dict[str, Any]) -> None:
    for weights, said in run(3, trained, keywords, 1, 2, torch.float64):
        assert_all(weights, -4.0)  # of -2 and -6
        assert said.startswith("rank 1 had weights that are not finite in the sync at step 2,")


@pytest.mark.parametrize(
    ("ranks", "keywords", "dtype", "value"),
    [
        (3, {}, torch.float64, -4.0 - 4.0),
        (4, {"topology": "2x2", "local_steps": [1, 2]}, torch.float64, -4.75 - 5.0),
        (3, {"topology": "1+2", "local_steps": [1, 2]}, torch.float64, -13 / 3 - 4.0),
    ],
)
def test_the_others_go_on_with_their_mean_and_the_worker_with_it(
    ranks: int, keywords: dict[str, Any], dtype: torch.dtype, value: float
) -> None:
    keywords = {**keywords, "not_finite": "leave_out", "average": "models"}
    found = run(ranks, trained, keywords, 1, 4, dtype)
    for weights, _ in found:
        assert_all(weights, value)
    said = [said for _, said in found if said]
    assert any(re.match("rank 1 had weights that are not finite", text) for text in said)


@pytest.mark.parametrize("reducer", [CompressedMean(Sign()), PowerSgd(rank=1)])
def test_after_a_refusal_each_rank_holds_its_own_weights_or_the_anchor(reducer: Any) -> None:
    found = run(2, trained, {"reducer": [reducer]}, 1, 2, torch.float64)
    for rank, (weights, said) in enumerate(found):
        own = weights[1:]
        assert_all(own, -2.0 * (rank + 1) if isinstance(reducer, CompressedMean) else 0.0)
        assert "not finite" in said
    assert found[0][0].isfinite().all()


def shown() -> tuple[Tensor, Tensor]:
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = LocalSGD(inner, model, local_steps=4, not_finite="leave_out")
    model.weight.grad = torch.full_like(model.weight, torch.nan if dist.get_rank() else 1.0)
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with optimizer.averaged_model():
            inside = model.weight.detach().clone()
    return inside, model.weight.detach().clone()


def test_the_averaged_model_leaves_out_what_is_not_finite() -> None:
    (first, own), (second, others) = run(2, shown)
    assert_all(first, 0.0)
    assert_all(second, 0.0)
    assert_all(own, 0.0)
    assert others.isnan().all()


def with_gradients(
    ddp: bool, keywords: dict[str, Any], culprits: tuple[int, ...], early: bool, closure: bool
) -> tuple[Tensor, list[str]]:
    """Weights fall by the mean of the ranks' numbers + 1 in each of 4 steps; in the second one the
    culprits' gradients are not finite.
    """
    model: nn.Module = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    weight = model.weight
    nn.init.zeros_(weight)
    model = DistributedDataParallel(model) if ddp else model
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = LocalSGD(inner, model, **{"local_steps": 1, **keywords})
    said = []
    for step in range(4):
        bad = step == 1 and dist.get_rank() in culprits
        x = torch.full((1, 2), torch.inf if bad else dist.get_rank() + 1.0, dtype=torch.float64)

        def loss(x: Tensor = x) -> Tensor:
            model.zero_grad()
            loss = model(x).sum()
            loss.backward()
            return loss

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                if not closure:
                    loss()
                    if early:
                        optimizer.average_gradients()
                        nn.utils.clip_grad_value_(weight, 100.0)
                optimizer.step(loss if closure else None)
            except UserError as error:
                said.append(str(error))
            said += [str(w.message) for w in caught]
    return weight.detach().clone(), said


WAYS = [(False, False), (False, True), (True, False)]


@pytest.mark.parametrize(("ddp", "early"), WAYS)
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_step_whose_averaged_gradients_are_not_finite_is_taken_by_nobody(
    ddp: bool, early: bool, goes_on: bool
) -> None:
    keywords = {"not_finite": "leave_out"} if goes_on else {}
    found = run(3, with_gradients, ddp, keywords, (1,), early, False)
    for rank, (weights, said) in enumerate(found):
        assert_all(weights, -6.0)  # three steps of 2
        assert len(said) == (rank == 1 if goes_on else 1)
        for text in said:
            where = "rank 1 had gradients that are not finite in the averaging of gradients"
            assert text.startswith(f"{where} at step 2, and ")


@pytest.mark.parametrize("ddp", [False, True])
def test_gradients_of_a_block_and_of_all_ranks(ddp: bool) -> None:
    keywords = {"topology": "2x2", "local_steps": [1, 4], "not_finite": "leave_out"}
    found = run(4, with_gradients, ddp, keywords, (0,), False, False)
    for weights, _ in found:
        assert_all(weights, -(3 * 1.5 + 4 * 3.5) / 2)  # The other block has taken all steps.
    assert [len(said) for _, said in found] == [1, 0, 0, 0]
    for weights, said in run(2, with_gradients, ddp, {"not_finite": "leave_out"}, (0, 1), False, 0):
        assert_all(weights, -4.5)
        assert said[0].startswith("all ranks had gradients that are not finite")


def test_gradients_in_a_closure_are_an_error_in_any_case() -> None:
    keywords = {"not_finite": "leave_out"}
    for weights, said in run(2, with_gradients, False, keywords, (1,), False, True):
        assert_all(weights, -4.5)
        assert said[0].startswith("rank 1 had gradients that are not finite")


def fragmented(keywords: dict[str, Any], entry: int, steps: int) -> tuple[Tensor, list[str]]:
    """Weights fall by the rank's number + 1 at each step; an entry of the second one's is NaN."""
    model = nn.Linear(16, 16, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = LocalSGD(inner, model, **{"local_steps": 1, **keywords})
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            model.weight.grad = torch.full_like(model.weight, dist.get_rank() + 1.0)
            if step == 0 and dist.get_rank():
                model.weight.grad.view(-1)[entry] = torch.nan
            try:
                optimizer.step()
            except UserError as error:
                said.append(str(error))
                break
        else:
            optimizer.finish()
    return model.weight.detach().clone(), said + [str(w.message) for w in caught]


LATE = Delay(fragments=2, syncs=1)


@pytest.mark.parametrize("keywords", [{}, {"outer": [outer.sgd(1.0)]}])
@pytest.mark.parametrize(("delay", "value"), [(Delay(fragments=2), -11.0), (LATE, -10.0)])
def test_a_worker_is_left_out_of_the_fragment_that_is_not_finite(
    keywords: dict[str, Any], delay: Delay, value: float
) -> None:
    keywords = {**keywords, "delay": delay, "not_finite": "leave_out"}
    (first, silent), (second, said) = run(2, fragmented, keywords, 130, 8)
    assert torch.equal(first, second)
    assert_all(first[:8], -12.0)
    # At its first sync the second fragment is the first rank's, -2. If that comes a sync late, the
    # other rank goes on from there when the first has -3.
    assert_all(first[8:], value)
    assert silent == []
    assert said[0].startswith("rank 1 had weights that are not finite in the sync at step ")


@pytest.mark.parametrize("keywords", [{}, {"outer": [outer.sgd(1.0)]}])
@pytest.mark.parametrize("delay", [Delay(fragments=2), LATE])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_fragment_of_one_tensor_leaves_nobody_out_and_names_the_rank(
    keywords: dict[str, Any], delay: Delay, goes_on: bool
) -> None:
    found = keywords | {"delay": delay} | ({"not_finite": "leave_out"} if goes_on else {})
    for rank, (weights, said) in enumerate(run(2, fragmented, found, 0, 8)):
        step = 1 + delay.syncs
        assert said[0].startswith(
            f"rank 1 had weights that are not finite in the sync at step {step}, in a fragment"
        )
        own = -step * (rank + 1.0)
        anchor = bool(keywords) and not delay.syncs
        assert_all(weights.view(-1)[1:128], 0.0 if anchor else own)
        assert_all(weights[8:], own)
        assert bool(weights[0, 0].isnan()) == (rank == 1 and not anchor)


class Watched(nn.Module):
    """Weights, and what batches have shown of them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.register_buffer("shown", torch.zeros(2, dtype=torch.float64))
        self.shown: Tensor


def mended(keywords: dict[str, Any], culprits: tuple[int, ...]) -> list[list[float]]:
    """The buffers after each of four steps, the second of which has NaN in it on the culprits."""
    model = Watched()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = LocalSGD(inner, model, not_finite="leave_out", **keywords)
    found = []
    for step in range(4):
        bad = step == 1 and dist.get_rank() in culprits
        model.shown += torch.nan if bad else dist.get_rank() + 1.0
        model.weight.grad = torch.full_like(model.weight, torch.nan if bad else 1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step()
        found.append(model.shown.tolist())
    with optimizer.averaged_model():
        found.append(model.shown.tolist())
    return found


def test_buffers_of_a_worker_that_was_left_out_become_those_of_the_others() -> None:
    for keywords in ({"local_steps": 2}, {"local_steps": 1}, {"local_steps": 1, "delay": Delay(1)}):
        found = run(3, mended, keywords, (1,))
        assert [rank[-2] for rank in found] == [[4.0] * 2, [4.0 + 4.0] * 2, [12.0] * 2]
        assert [rank[-1] for rank in found] == [[8.0] * 2] * 3


def test_buffers_become_those_of_the_block_or_of_all() -> None:
    keywords = {"topology": "2x2", "local_steps": [1, 4], "average": "models"}
    found = run(4, mended, keywords, (1,))
    assert [rank[1] for rank in found] == [[2.0] * 2, [2.0] * 2, [6.0] * 2, [8.0] * 2]
    keywords = {"topology": "2x2", "local_steps": [2, 1], "average": "models"}
    found = run(4, mended, keywords, (0, 1))
    assert [rank[1] for rank in found] == [[7.0] * 2, [7.0] * 2, [6.0] * 2, [8.0] * 2]


def two_rows() -> list[list[float]]:
    """Weights in two dtypes; those of rank 1 are far away, and NaN in one of them."""
    model = nn.ModuleList([nn.Linear(2, 2, bias=False, dtype=d) for d in (torch.float32, None)])
    model[1].double()
    for p in model.parameters():
        nn.init.zeros_(p)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = LocalSGD(inner, model, local_steps=2, not_finite="leave_out")
    found = []
    for step in range(2):
        for p in model.parameters():
            p.grad = torch.full_like(p, 1e6 if dist.get_rank() else 1.0)
        if step == dist.get_rank() == 1:
            model[0].weight.grad[0, 0] = torch.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if step:
                with optimizer.averaged_model():
                    found += [p.flatten().tolist() for p in model.parameters()]
            optimizer.step()
    return found + [p.flatten().tolist() for p in model.parameters()]


def test_a_worker_is_left_out_of_all_its_rows() -> None:
    mean = [-(1e6 + 1) / 2] * 4
    for found in run(2, two_rows):
        assert found == [mean, mean, [-2.0] * 4, [-2.0] * 4]


def at_the_end(delay: Delay) -> list[float]:
    """Four layers, one of which is NaN on rank 1 when the run ends."""
    model = nn.ModuleList([nn.Linear(3, 5, bias=False, dtype=torch.float64) for _ in range(4)])
    for p in model.parameters():
        nn.init.zeros_(p)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = LocalSGD(inner, model, local_steps=4, delay=delay, not_finite="leave_out")
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e6 if dist.get_rank() else 1.0)
    if dist.get_rank():
        model[0].weight.grad[0, 0] = torch.nan
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.finish()
    return [p[0, 0].item() for p in model.parameters()]


@pytest.mark.parametrize("delay", [Delay(2), LATE])
def test_the_last_sync_leaves_a_worker_out_of_all_fragments(delay: Delay) -> None:
    assert run(2, at_the_end, delay) == [[-1.0] * 4] * 2


def saved_alone(reducer: Any, delay: Delay) -> list[str]:
    """What each rank is told while one asks for its state alone, before a bad mean is due."""
    model = nn.Linear(16, 16, bias=False)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = LocalSGD(inner, model, local_steps=1, reducer=reducer, delay=delay)
    said = []
    for step in range(3):
        model.weight.grad = torch.ones_like(model.weight)
        if step == 0 and dist.get_rank():
            model.weight.grad[0, 0] = torch.nan
        try:
            optimizer.step()
            if step == dist.get_rank() == 0:
                optimizer.state_dict()
        except NotFinite as error:
            said.append(f"{optimizer.steps}: {error}")
    return said


@pytest.mark.parametrize(
    "reducer", ["int8", CompressedMean(Int8(), way="two-phase"), MajorityVote()], ids=str
)
def test_one_rank_may_ask_for_its_state_while_a_bad_update_is_on_its_way(reducer: Any) -> None:
    first, second = run(2, saved_alone, [reducer], Delay(2, 2))
    assert [text.split(";")[0] for text in first] == [
        f"{step}: the update of member 1 of 2 is not finite in weight" for step in (1, 3)
    ]
    assert second == first[1:]


def told_late() -> list[int]:
    """The steps after which a rank hears of NaN in the second one. Rank 0 has the mean before it is
    due, as it asks for its state.
    """
    model = nn.ModuleList([nn.Linear(3, 5, bias=False, dtype=torch.float64) for _ in range(2)])
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = LocalSGD(
        inner, model, local_steps=1, delay=Delay(2, 2), not_finite="leave_out", average="models"
    )
    told = []
    for step in range(6):
        for p in model.parameters():
            p.grad = torch.full_like(p, dist.get_rank() + 1.0)
        if step == 1 and dist.get_rank() == 0:
            model[1].weight.grad[0, 0] = torch.nan
        with mock.patch.object(optimizer._together, "tell_of_not_finite") as tell:
            optimizer.step()
        told += [optimizer.steps] * tell.call_count
        if dist.get_rank() == 0:
            optimizer.state_dict()
    return told


def test_all_hear_of_a_worker_that_was_left_out_after_the_same_step() -> None:
    assert run(2, told_late) == [[4], [4]]
