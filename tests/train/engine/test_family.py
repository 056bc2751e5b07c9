"""Every method as a run: resumed and hosted otherwise to the same bits, and some by hand.

Shapes: K workers.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from localsgd.averaging.placement import placement_of
from localsgd.errors import UserError
from localsgd.train.config.methods import METHODS
from localsgd.train.config.plan import Plan
from localsgd.train.engine.assembly import Assembly, assemble
from localsgd.train.engine.execution import Interrupted
from tests.distributed import harness
from tests.runs import SAMPLES, digits, prepared, same, signalled_at, tiny, worker_states

pytestmark = pytest.mark.timeout(300)

METHOD_RUNS: dict[str, dict[str, Any]] = {
    name: {
        "method": name,
        **({"topology": "2x2", "local_steps": (2, 2)} if chosen.several_levels else {}),
    }
    for name, chosen in METHODS.items()
    if name != "waiting"  # its H follows the clock
}
SETTINGS: dict[str, dict[str, Any]] = {
    **METHOD_RUNS,
    "majority": {"compression": "majority", "method": "local"},
    "int8": {"compression": "int8", "method": "local"},
    "delayed signs": {"compression": "ef-sign", "method": "delayed"},
    "streamed signs in two phases": {
        "compression": "ef-sign",
        "method": "streaming",
        "compression_way": "two-phase",
        "local_steps": (1,),
    },
    "inner state": {
        "method": "local",
        "optimizer": "adamw",
        "inner_state": "exp_avg=average:2,all=reset",
    },
    "lars": {"method": "local", "optimizer": "lars", "momentum": 0.5},
    "larc": {"method": "post-local", "optimizer": "larc"},
    "sign descent": {"method": "local", "optimizer": "sign", "lr": 1e-3},
    "noise and clipping": {"noise": 1e-4, "clip": 1.0},
    "owned": {"partition": "dirichlet:1", "method": "local", "weighting": "samples"},
    "leaving early": {
        "partition": "dirichlet:0.5",
        "method": "local",
        "exhausted": "leave",
        "weighting": "fednova",
        "train_samples": 160,
    },
    "stragglers": {"slowdown": (1.0, 2.0, 1.0, 3.0), "method": "local", "weighting": "fednova"},
    "sqrt scaling": {"lr_scaling": "sqrt", "method": "local"},
}


def finished(settings: dict[str, Any], path: Path) -> Assembly:
    execution = prepared(tiny(**settings), path)
    execution.train()
    return execution.assembly


@pytest.mark.parametrize("name", SETTINGS)
def test_cut_off_and_resumed_to_the_same_bits(name: str, tmp_path: Path) -> None:
    whole = finished(SETTINGS[name], tmp_path / "whole")
    assert whole.workers.params.isfinite().all()
    if not Plan(whole.run, SAMPLES).weighs and whole.run.method != "cyclic":
        assert torch.equal(
            whole.workers.params, whole.workers.params[:1].expand_as(whole.workers.params)
        )
    cut = tmp_path / "cut"
    with pytest.raises(Interrupted):
        prepared(tiny(**SETTINGS[name]), cut, at_step=signalled_at(6, 15)).train()
    again = prepared(tiny(**SETTINGS[name]), cut, resuming=True)
    assert again.assembly.workers.step == 6
    again.train()
    assert same(worker_states(again.assembly), worker_states(whole))


HOSTED = (
    "adacomm batch-growth cyclic delayed ef-sign streaming",
    "delayed signs,streamed signs in two phases,inner state,noise and clipping,owned,stragglers",
)
"""Those that keep something for each worker, or draw for it, in two handfuls: every run makes
process groups that live as long as their processes.
"""


def each(names: list[str], folder: str) -> dict[str, Any]:
    return {
        name: worker_states(finished(SETTINGS[name], Path(folder) / str(number)))
        for number, name in enumerate(names)
    }


@pytest.mark.parametrize("names", HOSTED)
def test_the_same_bits_however_workers_are_hosted(names: str, tmp_path: Path) -> None:
    chosen = names.split("," if "," in names else None)
    here = each(chosen, str(tmp_path / "here"))
    parts = harness.run(4, each, chosen, str(tmp_path / "there"), seconds=240)
    for name, states in here.items():
        found = {worker: state for part in parts for worker, state in part[name].items()}
        assert same(found, states), name


def assembled(**settings: Any) -> Assembly:
    run = tiny(precision="float64", model="mlp-16", **settings)
    return assemble(run, digits(), placement_of(Plan(run, SAMPLES).topology), torch.device("cpu"))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gradient(assembly: Assembly, model: nn.Module, worker: int, step: int) -> list[Tensor]:
    x, y = assembly.task.train_batch(assembly.order.indices(worker, step), None)
    loss = assembly.task.loss(model(x.double()), y)
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_growing_batch_is_mini_batch_sgd_with_a_larger_batch(clip: float | None) -> None:
    """Each worker clips the mean of its batches, once."""
    assembly = assembled(method="batch-growth", weight_decay=0.01, clip=clip)
    model = copy.deepcopy(assembly.workers.models[0])
    sgd = torch.optim.SGD(
        model.parameters(), lr=1.0, momentum=0.9, nesterov=True, weight_decay=0.01
    )
    step = 0
    while step < assembly.plan.steps:
        length = min(1 if step < 4 else 3, assembly.plan.steps - step)
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for worker in range(4):
            mean = [torch.zeros_like(p) for p in model.parameters()]
            for h in range(length):
                for total, own in zip(
                    mean, gradient(assembly, model, worker, step + h), strict=True
                ):
                    total += own / length
            norm = torch.cat([own.flatten() for own in mean]).norm().item()
            scale = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
            assert clip is None or scale < 1
            for total, own in zip(sums, mean, strict=True):
                total += own * scale / 4
        for parameter, mean in zip(model.parameters(), sums, strict=True):
            parameter.grad = mean
        sgd.param_groups[0]["lr"] = assembly.plan.learning_rate(step)
        sgd.step()
        step += length
    assembly.advance()
    for own in assembly.workers.models:
        torch.testing.assert_close(flat(own), flat(model), rtol=1e-12, atol=1e-12)


def test_samples_are_those_that_were_trained_on(tmp_path: Path) -> None:
    """In each of four rounds of 3 the workers take 3, 2, 1 and 1 steps, on batches of 5."""
    slow = {"method": "local", "slowdown": (1.0, 1.5, 3.0, 9.0)}
    assert prepared(tiny(**slow), tmp_path / "slow").train()["samples"] == 4 * (3 + 2 + 1 + 1) * 5
    assert prepared(tiny(), tmp_path / "all").train()["samples"] == 12 * 4 * 5


@pytest.mark.parametrize("weighting", ["equal", "fednova"])
def test_stragglers_take_fewer_steps_and_weigh_as_said(weighting: str) -> None:
    assembly = assembled(
        method="local",
        slowdown=(1.0, 1.5, 3.0, 9.0),
        weighting=weighting,
        momentum=0.0,
        weight_decay=0.0,
    )
    taken_before = [0] * 4
    anchor = copy.deepcopy(assembly.workers.models[0])
    step = 0
    while step < assembly.plan.steps:
        mean, steps = torch.zeros_like(flat(anchor)), [3, 2, 1, 1]
        average = sum(steps) / 4
        for worker, count in enumerate(steps):
            model = copy.deepcopy(anchor)
            for h in range(count):
                slopes = gradient(assembly, model, worker, taken_before[worker] + h)
                with torch.no_grad():
                    for p, g in zip(model.parameters(), slopes, strict=True):
                        p -= assembly.plan.learning_rate(step + h) * g
            factor = average / count if weighting == "fednova" else 1.0
            mean += factor / 4 * (flat(anchor) - flat(model))
            taken_before[worker] += count
        torch.nn.utils.vector_to_parameters(flat(anchor) - mean, anchor.parameters())
        step += 3
    assembly.advance()
    assert assembly.workers.taken == taken_before == [12, 8, 4, 4]
    for own in assembly.workers.models:
        torch.testing.assert_close(flat(own), flat(anchor), rtol=1e-12, atol=1e-12)


def params(**settings: Any) -> Tensor:
    assembly = assembled(**settings)
    assembly.advance()
    return assembly.workers.params


def test_momentum_identities() -> None:
    plain = params(method="local", momentum=0.9)
    for settings in (
        {"method": "slowmo", "outer_momentum": 0.0, "outer_lr": 1.0},
        {"method": "local", "outer": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0},
        {"method": "block-momentum", "outer_momentum": 0.0},
        {"method": "delayed", "delay": 0},
        {"method": "local", "inner_state": "momentum_buffer=keep"},
    ):
        torch.testing.assert_close(params(momentum=0.9, **settings), plain, rtol=0, atol=1e-12)
    local = params(method="mini-batch", momentum=0.6, nesterov=False, lr_decay_at=(0.5,))
    outside = params(
        method="block-momentum",
        local_steps=(1,),
        momentum=0.0,
        outer_momentum=0.6,
        lr_decay_at=(0.5,),
    )
    torch.testing.assert_close(outside, local, rtol=0, atol=1e-12)


def test_a_switch_that_never_comes_and_one_at_the_start() -> None:
    small = params(method="mini-batch", average="models")
    late = params(method="batch-growth", switch="fraction:1")
    torch.testing.assert_close(late, small, rtol=0, atol=1e-12)


def test_inner_states_are_averaged_or_reset_at_syncs() -> None:
    seen: dict[str, list[list[Tensor]]] = {}
    none = torch.zeros(1)  # A state that was reset is empty until the next step.
    for rule in ("average", "reset", "average:2"):
        assembly = assembled(method="local", inner_state=f"momentum_buffer={rule}")
        kept: list[list[Tensor]] = []

        def look(assembly: Assembly = assembly, kept: list[list[Tensor]] = kept) -> None:
            kept.append(
                [
                    torch.cat([s.get("momentum_buffer", none).clone() for s in o.state.values()])
                    for o in assembly.workers.optimizers
                ]
            )

        assembly.advance(look)
        seen[rule] = kept
    equal = {
        rule: [all(torch.equal(own, step[0]) for own in step) for step in kept]
        for rule, kept in seen.items()
    }
    assert equal["average"] == [False, False, True] * 4
    assert equal["average:2"] == [False, False, False, False, False, True] * 2
    assert [bool(step[0].eq(0).all()) for step in seen["reset"]] == [False, False, True] * 4


def test_what_a_cycle_ends_with_is_kept(tmp_path: Path) -> None:
    execution = prepared(tiny(method="cyclic", lr_cycles=3), tmp_path / "run")
    execution.train()
    names = sorted(path.name for path in (tmp_path / "run" / "snapshots").iterdir())
    assert names == [f"cycle-{number}.safetensors" for number in (1, 2, 3)]
    last = (tmp_path / "run" / "snapshots" / names[-1]).read_bytes()
    assert last == (tmp_path / "run" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inner_state": "momentum"}, "KEY=RULE"),
        ({"inner_state": "x=halve"}, "rule 'halve'"),
        ({"fragments": 2, "delay": 3}, "delay of 3 syncs"),
        ({"slowdown": (1.0, 2.0)}, "2 numbers for 4 workers"),
        (
            {"method": "batch-growth", "slowdown": (1.0, 2.0, 1.0, 1.0)},
            "equally many batches of each",
        ),
        (
            {"method": "batch-growth", "exhausted": "leave", "partition": "fixed"},
            "equally many batches of each",
        ),
        ({"slowdown": (1.0,) * 4, "topology": "2x2", "local_steps": (2, 2)}, "need one level"),
        ({"exhausted": "leave"}, "workers that own their samples"),
        ({"partition": "iid"}, "unknown partition"),
        ({"outer": "slowmo", "average": "gradients"}, "plain mean of models"),
        ({"method": "batch-growth", "compression": "sign"}, "averages gradients"),
        ({"lr_schedule": "cosine", "switch": "first-decay"}, "falls in steps"),
        ({"method": "batch-growth", "topology": "2x2", "local_steps": (2, 2)}, "average at once"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny(**settings)


def test_a_key_that_no_state_has_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no 'exp_avg'; it has momentum_buffer"):
        prepared(tiny(method="local", inner_state="exp_avg=reset"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_presets_give_way_to_what_is_said() -> None:
    assert tiny(method="diloco").optimizer == "adamw"
    assert tiny(method="diloco", optimizer="sgd", lr=0.5).lr == 0.5
    assert tiny(method="ef-sign", compression="int8").compression == "int8"
