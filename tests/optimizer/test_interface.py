"""One worker: LocalSGD is the inner optimizer, and all that an Optimizer can do."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import localsgd
from localsgd import LocalSGD, UserError
from tests.optimizer.reference import assert_bits, loss_of, nesterov, net, values


def plain(steps: int, make: Any = nesterov) -> nn.Module:
    model = net()
    optimizer = make(model)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, 0, step).backward()
        optimizer.step()
    return model


def go(model: nn.Module, optimizer: LocalSGD, first: int, last: int) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        loss_of(model, 0, step).backward()
        optimizer.step()


@pytest.mark.parametrize(
    "keywords",
    [
        {"local_steps": 1},
        {"local_steps": 4},
        {"local_steps": localsgd.post_local(3, after=4)},
        {"local_steps": [2, 3], "topology": localsgd.Topology((1, 1))},
        {"local_steps": 1, "average": "gradients"},
    ],
    ids=str,
)
def test_one_worker_takes_the_inner_optimizer_s_steps(keywords: dict[str, Any]) -> None:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, **keywords)
    go(model, optimizer, 0, 10)
    with optimizer.averaged_model() as averaged:
        assert averaged is model
        assert_bits(values(model), values(plain(10)))
    optimizer.finish()
    assert_bits(values(model), values(plain(10)))
    assert optimizer.ledger.bytes == 0


def test_groups_state_and_defaults_are_the_inner_optimizer_s() -> None:
    model = net()
    inner = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[1:].parameters()}],
        lr=0.1,
        momentum=0.9,
    )
    optimizer = LocalSGD(inner, model, local_steps=2)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.defaults is inner.defaults
    go(model, optimizer, 0, 3)
    assert optimizer.state is inner.state
    assert optimizer.state[model[0].weight]["momentum_buffer"].any()
    inner.load_state_dict(inner.state_dict())  # puts new lists in place of the old
    assert optimizer.param_groups is inner.param_groups
    optimizer.param_groups[0]["lr"] = 0.0
    before = model[0].weight.clone()
    optimizer.step()
    assert torch.equal(model[0].weight, before)
    assert "lr: 0.0" in repr(optimizer)


def test_learning_rate_schedulers_act_and_count() -> None:
    model, other = net(), net()
    optimizer, alone = LocalSGD(nesterov(model), model, local_steps=3), nesterov(other)
    schedulers = [
        torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=8)
        for o in (optimizer, alone)
    ]
    for step in range(7):
        for m, o, s in zip((model, other), (optimizer, alone), schedulers, strict=True):
            o.zero_grad()
            loss_of(m, 0, step).backward()
            o.step()
            s.step()
    assert schedulers[0].get_last_lr() == schedulers[1].get_last_lr() != [0.1]
    assert_bits(values(model), values(other))


def test_hooks_are_called_once_a_step() -> None:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=3)
    called: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    handle = optimizer.register_step_post_hook(lambda *_: called.append("after"))
    go(model, optimizer, 0, 2)
    handle.remove()
    go(model, optimizer, 2, 3)
    assert called == ["before", "after", "before", "after", "before"]


def test_state_dict_hooks_are_called() -> None:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=3)
    called: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda _: called.append("save"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "mine": 1})
    optimizer.register_load_state_dict_pre_hook(lambda _, state: called.append(str(state["mine"])))
    optimizer.register_load_state_dict_post_hook(lambda _: called.append("loaded"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert called == ["save", "1", "loaded"]


def test_closures() -> None:
    model, other = net(), net()
    make = torch.optim.LBFGS
    pairs = [
        (model, LocalSGD(make(model.parameters()), model, local_steps=2)),
        (other, make(other.parameters())),
    ]
    losses = []
    for m, optimizer in pairs:

        def closure(m: nn.Module = m, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(m, 0, 0)
            loss.backward()
            return loss

        losses.append([optimizer.step(closure).item() for _ in range(2)])
    assert losses[0] == losses[1]
    assert_bits(values(model), values(other))


def test_zero_grad_is_the_inner_optimizer_s() -> None:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=1)
    go(model, optimizer, 0, 1)
    gradient = model[0].weight.grad
    optimizer.zero_grad(set_to_none=False)
    assert model[0].weight.grad is gradient
    assert not gradient.any()
    optimizer.zero_grad()
    assert model[0].weight.grad is None


def test_a_deep_copy_has_rows_of_its_own() -> None:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=3)
    go(model, optimizer, 0, 4)
    twin, copied = copy.deepcopy((model, optimizer))
    assert copied.model is twin
    assert copied.steps == 4
    assert copied.param_groups[0]["params"][0] is twin[0].weight
    before = values(model)
    go(twin, copied, 4, 9)
    assert_bits(values(model), before)
    go(model, optimizer, 4, 9)
    assert_bits(values(twin), values(model))
    assert_bits(values(model), values(plain(9)))


def test_state_goes_through_a_file(tmp_path: Any) -> None:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=3)
    go(model, optimizer, 0, 4)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "x")
    saved = torch.load(tmp_path / "x", weights_only=True)
    other = net()
    resumed = LocalSGD(nesterov(other), other, local_steps=3)
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    assert resumed.steps == 4
    go(other, resumed, 4, 9)
    assert_bits(values(other), values(plain(9)))
    assert resumed.state_dict()["local_sgd"]["position"]["left"] == [3]


@pytest.mark.parametrize("cut", range(1, 8))
def test_every_second_sync_is_the_same_one_after_a_resume(cut: int) -> None:
    """By hand: gradients of 1, and momentum 1, that is reset after steps 4 and 8."""

    def made() -> tuple[nn.Module, LocalSGD]:
        model = nn.Linear(1, 1, bias=False)
        inner = torch.optim.SGD(model.parameters(), lr=1.0, momentum=1.0 - 2**-30)
        rule = "momentum_buffer=reset:2"
        options: dict[str, Any] = {"local_steps": 2, "average": "models", "inner_state": rule}
        return model, LocalSGD(inner, model, **options)

    def momenta(model: nn.Module, optimizer: LocalSGD, steps: int) -> list[int]:
        found = []
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            found.append(round(float(optimizer.state[model.weight].get("momentum_buffer", 0))))
        return found

    model, optimizer = made()
    before = momenta(model, optimizer, cut)
    again, resumed = made()
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert before + momenta(again, resumed, 9 - cut) == [1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_a_plain_state_is_refused() -> None:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=3)
    with pytest.raises(UserError, match=r"load it with optimizer\.inner\.load_state_dict"):
        optimizer.load_state_dict(nesterov(net()).state_dict())
    optimizer.inner.load_state_dict(nesterov(net()).state_dict())


def test_a_state_of_other_levels_is_refused() -> None:
    models = [net(), net()]
    flat = LocalSGD(nesterov(models[0]), models[0], local_steps=3)
    nested = LocalSGD(nesterov(models[1]), models[1], local_steps=[3, 1], topology="1x1")
    with pytest.raises(UserError, match="saved with topology 1x1, and this LocalSGD has 1;"):
        flat.load_state_dict(nested.state_dict())


def test_it_cannot_be_pickled() -> None:
    model = net()
    with pytest.raises(TypeError, match=r"save its state_dict\(\)"):
        pickle.dumps(LocalSGD(nesterov(model), model, local_steps=1))


def test_groups_added_later() -> None:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=2)
    with pytest.raises(UserError, match="fixed when it is made"):
        optimizer.add_param_group({"params": nn.Linear(1, 1).parameters()})
    frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    optimizer.add_param_group({"params": frozen, "lr": 0.3})
    assert optimizer.param_groups[1]["lr"] == 0.3
    frozen.requires_grad_()
    optimizer.step()
    with pytest.raises(UserError, match="trains now"):
        optimizer.step()


def test_a_parameter_that_trains_is_noticed_before_a_group_is_added() -> None:
    model = net()
    model[0].requires_grad_(False)
    optimizer = LocalSGD(nesterov(model), model, local_steps=2)
    model[0].requires_grad_()
    frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    with pytest.raises(UserError, match="trains now"):
        optimizer.add_param_group({"params": frozen})
    assert len(optimizer.param_groups) == 1
    model[0].requires_grad_(False)
    optimizer.add_param_group({"params": frozen})
    model[0].requires_grad_()
    optimizer.step()
    with pytest.raises(UserError, match="trains now"):
        optimizer.step()


def test_a_group_of_named_tensors_that_don_t_train() -> None:
    model = net()
    inner = torch.optim.SGD(model.named_parameters(), lr=0.1)
    optimizer = LocalSGD(inner, model, local_steps=2)
    frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    optimizer.add_param_group({"params": [("frozen", frozen)]})
    assert optimizer.param_groups[1]["params"][0] is frozen
    with pytest.raises(UserError, match="fixed when it is made"):
        optimizer.add_param_group({"params": nn.Linear(1, 1).named_parameters()})


def test_its_text_says_when_and_with_whom() -> None:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=[2, 8], topology="1x1")
    optimizer.step()
    text = repr(optimizer)
    assert text.startswith("LocalSGD (H = [2, 8], topology 1x1, 1 step) of SGD (")
    assert "lr: 0.1" in text
    plain = LocalSGD(nesterov(model), model, local_steps=4)
    assert repr(plain).startswith("LocalSGD (H = 4, topology 1, 0 steps)")


def test_no_step_inside_the_averaged_model() -> None:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=2)
    with (
        optimizer.averaged_model(),
        optimizer.averaged_model(),
        pytest.raises(UserError, match="leave"),
    ):
        optimizer.step()
    with optimizer.averaged_model():
        with pytest.raises(
            UserError, match=r"finish\(\) inside averaged_model\(\) would be undone"
        ):
            optimizer.finish()
        with pytest.raises(UserError, match="leave"):
            optimizer.load_state_dict(optimizer.state_dict())
    go(model, optimizer, 0, 1)


def test_a_gradient_scaler_skips_and_counts() -> None:
    model = net().float()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = LocalSGD(inner, model, local_steps=3)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    scaled, alone = copy.deepcopy(model), torch.amp.GradScaler("cpu", init_scale=16.0)
    other = torch.optim.SGD(scaled.parameters(), lr=0.1)
    for step in range(4):
        for m, o, s in ((model, optimizer, scaler), (scaled, other, alone)):
            o.zero_grad()
            x = torch.full((2, 3), torch.inf if step == 1 else 1.0 + step)
            s.scale(m[3](m[2](m[0](x))).sum()).backward()
            s.step(o)
            s.update()
    assert optimizer.steps == 4
    assert scaler.get_scale() == alone.get_scale() == 8.0
    assert_bits(values(model), values(scaled))


def test_a_scaler_whose_user_unscales_and_clips() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=1.0), model, local_steps=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = model.weight.detach().clone()
    scaler.scale(model(torch.tensor([[3.0, 4.0]])).sum()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    torch.testing.assert_close(before - model.weight.detach(), torch.tensor([[0.6, 0.8]]))


def test_finish_synchronises_only_where_that_is_due() -> None:
    """The inner level has just averaged; once more would let its momentum act on nothing new."""
    model = net()
    outers = [localsgd.outer.sgd(1.0, momentum=0.5), None]
    optimizer = LocalSGD(nesterov(model), model, local_steps=[2, 2], topology="1x1", outer=outers)
    go(model, optimizer, 0, 2)
    averaged = values(model)
    optimizer.finish()
    assert_bits(values(model), averaged)
    go(model, optimizer, 2, 3)
    moved = values(model)
    optimizer.finish()
    assert not torch.equal(values(model)["0.weight"], moved["0.weight"])


def test_an_outer_round_keeps_the_rate_of_its_first_step() -> None:
    """Worked out by hand: a gradient of 1, learning rates 1 to 8, two levels of 2."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    outers = [None, localsgd.outer.block_momentum(0.5)]
    optimizer = LocalSGD(inner, model, local_steps=[2, 2], topology="1x1", outer=outers)
    for rate in range(1, 9):
        optimizer.param_groups[0]["lr"] = float(rate)
        optimizer.zero_grad()
        model(torch.ones(1, 1, dtype=torch.float64)).sum().backward()
        optimizer.step()
    # u1 = 10 / 1, w = -10; u2 = 0.5 * 10 + 26 / 5, w = -10 - 5 u2
    assert model.weight.item() == -61.0


def test_block_momentum_is_told_the_rate_of_the_round_s_first_step() -> None:
    """w <- w0 - lr u with u = (w0 - w1) / lr: the first round is plain averaging."""
    model = net()
    outers = [localsgd.outer.block_momentum(0.5)]
    optimizer = LocalSGD(nesterov(model), model, local_steps=2, outer=outers)
    start = model[0].weight.detach().clone()
    go(model, optimizer, 0, 1)
    optimizer.param_groups[0]["lr"] = 0.01
    go(model, optimizer, 1, 2)
    first = model[0].weight.detach().clone()
    inner = net()
    alone = nesterov(inner)
    inner.load_state_dict(values(model))
    alone.load_state_dict(copy.deepcopy(optimizer.inner.state_dict()))
    go(model, optimizer, 2, 4)
    for step in (2, 3):
        alone.zero_grad()
        loss_of(inner, 0, step).backward()
        alone.step()
    second = first - inner[0].weight.detach()
    # u1 = (start - first) / 0.1, u2 = 0.5 u1 + second / 0.01; the round moves by 0.01 u2.
    expected = first - 0.01 * (0.5 * (start - first) / 0.1 + second / 0.01)
    torch.testing.assert_close(model[0].weight.detach(), expected, rtol=1e-12, atol=1e-12)


def test_a_number_that_is_reported_has_a_name() -> None:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=1)
    with pytest.raises(UserError, match=r"report\(1\.0\) has no name .*report\(NAME=\.\.\.\)"):
        optimizer.report(1.0)


def test_at_sync_follows_the_schedules() -> None:
    model = net()
    optimizer = LocalSGD(nesterov(model), model, local_steps=[2, 2], topology="1x1")
    seen = [optimizer.at_sync]
    for step in range(8):
        go(model, optimizer, step, step + 1)
        seen.append(optimizer.at_sync)
    assert seen == [step % 4 == 0 for step in range(9)]
    go(model, optimizer, 8, 9)
    optimizer.finish()
    assert optimizer.at_sync
