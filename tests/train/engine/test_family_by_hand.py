"""Methods beside K models in a list and their printed formulas: here, in four processes, resumed.

Every run has 4 workers, 12 steps, rounds of 3 and another learning rate at every step of the
warm-up.

Shapes: K workers · n scalars of a model, without padding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from localsgd.averaging.placement import placement_of
from localsgd.basics.seeds import generator_for
from localsgd.train.config.plan import Plan
from localsgd.train.engine import checkpoints
from localsgd.train.engine.assembly import Assembly, assemble
from localsgd.train.engine.execution import barrier
from tests.distributed import harness
from tests.runs import SAMPLES, digits, tiny

pytestmark = pytest.mark.timeout(300)

K, H = 4, 3

Memory = dict[str, Any]
Average = Callable[[Memory, Tensor, float, bool], Tensor]
"""The rows `[K, n]` after a sync, from a memory that begins with the `anchor`, the rows
before, the learning rate of the round's first step, and whether it is the last one."""


def plain(memory: Memory, rows: Tensor, rate: float, last: bool) -> Tensor:
    return moved(memory, rows, rows.mean(0))


def moved(memory: Memory, rows: Tensor, anchor: Tensor) -> Tensor:
    memory["anchor"] = anchor
    return anchor.expand_as(rows)


def slowmo(beta: float, alpha: float) -> Average:
    """u <- β u + mean Δ/γ, w <- w - α γ u."""

    def average(memory: Memory, rows: Tensor, rate: float, last: bool) -> Tensor:
        w = memory["anchor"]
        memory["u"] = beta * memory.get("u", 0) + (w - rows).mean(0) / rate
        return moved(memory, rows, w - alpha * rate * memory["u"])

    return average


def bmuf(eta: float, zeta: float) -> Average:
    """Δ <- η Δ + ζ (mean - v), v <- v + ζ (mean - v) + η Δ."""

    def average(memory: Memory, rows: Tensor, rate: float, last: bool) -> Tensor:
        v = memory["anchor"]
        way = rows.mean(0) - v
        memory["delta"] = eta * memory.get("delta", 0) + zeta * way
        return moved(memory, rows, v + zeta * way + eta * memory["delta"])

    return average


def sign(x: Tensor) -> Tensor:
    """0 counts as positive."""
    return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)


def signs(feedback: bool) -> Average:
    """v <- u + e, e <- v - C(v), w <- w - mean C(v), C by tensor."""

    def compressed(memory: Memory, v: Tensor) -> Tensor:
        parts = v.split(memory["sizes"])
        return torch.cat([part.abs().mean() * sign(part) for part in parts])

    def average(memory: Memory, rows: Tensor, rate: float, last: bool) -> Tensor:
        given = memory["anchor"] - rows
        if feedback:
            given = given + memory.get("errors", 0)
        sent = torch.stack([compressed(memory, v) for v in given])
        memory["errors"] = given - sent
        return moved(memory, rows, memory["anchor"] - sent.mean(0))

    return average


def majority(memory: Memory, rows: Tensor, rate: float, last: bool) -> Tensor:
    found = []
    for part in (memory["anchor"] - rows).split(memory["sizes"], dim=1):
        found.append(part.abs().mean() * sign(part).sum(0).sign())
    return moved(memory, rows, memory["anchor"] - torch.cat(found))


def delayed(memory: Memory, rows: Tensor, rate: float, last: bool) -> Tensor:
    """A mean is applied a sync later; the last sync waits for nothing."""
    rows = rows.clone()
    if "sent" in memory:
        rows += memory["sent"].mean(0) - memory["sent"]
    memory["sent"] = rows.clone()
    if last:
        rows += memory["sent"].mean(0) - memory["sent"]
    return rows


def by_samples(memory: Memory, rows: Tensor, rate: float, last: bool) -> Tensor:
    shares = torch.tensor(memory["samples"], dtype=rows.dtype) / SAMPLES
    return moved(memory, rows, shares @ rows)


def ring(memory: Memory, rows: Tensor, rate: float, last: bool) -> Tensor:
    """W rows, for the matrix of D-PSGD on a ring; the run ends with the mean."""
    one = torch.eye(K, dtype=rows.dtype)
    mixed = (one + one.roll(1, 0) + one.roll(-1, 0)) / 3 @ rows
    return mixed.mean(0).expand_as(rows) if last else mixed


def pairs(memory: Memory, rows: Tensor, rate: float, last: bool) -> Tensor:
    sync = memory["sync"] = memory.get("sync", -1) + 1
    a, b, c, d = torch.randperm(K, generator=generator_for(0, "pairs", sync)).tolist()
    mixed = rows.clone()
    for one, other in ((a, b), (c, d)):
        mixed[one] = mixed[other] = (rows[one] + rows[other]) / 2
    return mixed.mean(0).expand_as(rows) if last else mixed


CASES: dict[str, tuple[dict[str, Any], Average]] = {
    "local": ({}, plain),
    "slowmo": ({"method": "slowmo", "outer_lr": 0.8, "outer_momentum": 0.4}, slowmo(0.4, 0.8)),
    "block momentum": ({"method": "block-momentum"}, slowmo(0.3, 1.0)),
    "bmuf": ({"method": "bmuf", "outer_lr": 0.9}, bmuf(0.75, 0.9)),
    "diloco's outer optimizer": ({"outer": "diloco"}, bmuf(0.9, 0.7)),
    "signs": ({"compression": "sign"}, signs(feedback=False)),
    "signs with feedback": ({"compression": "ef-sign"}, signs(feedback=True)),
    "majority": ({"compression": "majority"}, majority),
    "delayed": ({"method": "delayed"}, delayed),
    "noise and clipping": ({"noise": 1e-3, "clip": 0.5}, plain),
    "momenta averaged": ({"inner_state": "momentum_buffer=average:2"}, plain),
    "momenta reset": ({"inner_state": "momentum_buffer=reset:2"}, plain),
    "a ring": ({"neighbours": "ring"}, ring),
    "pairs": ({"neighbours": "pairs"}, pairs),
    "weighed by samples": ({"partition": "dirichlet:1", "weighting": "samples"}, by_samples),
}


def assembled(name: str) -> Assembly:
    settings, _ = CASES[name]
    usual = {"method": "local", "model": "mlp-16", "precision": "float64", "weight_decay": 0.0}
    run = tiny(**{**usual, "momentum": 0.9, "lr_warmup": 1.0, **settings})
    placement = placement_of(Plan(run, SAMPLES).topology)
    return assemble(run, digits(), placement, torch.device("cpu"))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gradients(assembly: Assembly, model: nn.Module, worker: int, step: int) -> list[Tensor]:
    """Of the worker's batch, with noise, then clipped as a whole."""
    run = assembly.run
    x, y = assembly.task.train_batch(assembly.order.indices(worker, step), None)
    loss = assembly.task.loss(model(x.double()), y)
    named = dict(model.named_parameters())
    found = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    layout = assembly.workers.layout
    row = torch.zeros(layout.length, dtype=torch.float64)
    for name, view in layout.views(row).items():
        view.copy_(found[name])
    if run.clip:
        row *= min(1.0, run.clip / (float(row.norm()) + 1e-6))
    if run.noise:
        draw = generator_for(run.seed, "gradient noise", step)
        noise = torch.randn(layout.length, generator=draw, dtype=torch.float64)
        row += noise * (run.noise / (1 + step) ** run.noise_decay) ** 0.5
    views = layout.views(row)
    return [views[name].clone() for name in named]


def obvious(name: str) -> Tensor:
    """The models `[K, n]` at the end, without rows, levels, reducers and schedules."""
    assembly, (settings, average) = assembled(name), CASES[name]
    models = [copy.deepcopy(assembly.workers.models[0]) for _ in range(K)]
    optimizers = [
        torch.optim.SGD(m.parameters(), lr=1.0, momentum=0.9, nesterov=True) for m in models
    ]
    memory: Memory = {
        "anchor": flat(models[0]),
        "sizes": [p.numel() for p in models[0].parameters()],
        "samples": [len(part) for part in getattr(assembly.order, "parts", ())],
    }
    for step in range(assembly.plan.steps):
        for worker, (model, sgd) in enumerate(zip(models, optimizers, strict=True)):
            found = gradients(assembly, model, worker, step)
            for parameter, gradient in zip(model.parameters(), found, strict=True):
                parameter.grad = gradient
            sgd.param_groups[0]["lr"] = assembly.plan.learning_rate(step)
            sgd.step()
        rounds, rest = divmod(step + 1, H)
        if rest:
            continue
        rate = assembly.plan.learning_rate(step + 1 - H)
        last = step + 1 == assembly.plan.steps
        rows = average(memory, torch.stack([flat(model) for model in models]), rate, last)
        for model, row in zip(models, rows, strict=True):
            nn.utils.vector_to_parameters(row.clone(), model.parameters())
        rule = settings.get("inner_state", "")
        if rule and rounds % 2 == 0:
            change_momenta(models, optimizers, average="average" in rule)
    return torch.stack([flat(model) for model in models])


def change_momenta(
    models: list[nn.Module], optimizers: list[torch.optim.SGD], average: bool
) -> None:
    for same in zip(*(model.parameters() for model in models), strict=True):
        pairs = zip(optimizers, same, strict=True)
        buffers = [sgd.state[parameter]["momentum_buffer"] for sgd, parameter in pairs]
        mean = torch.stack(buffers).mean(0) if average else torch.zeros_like(buffers[0])
        for buffer in buffers:
            buffer.copy_(mean)


def found(name: str) -> dict[int, Tensor]:
    """By worker hosted here."""
    assembly = assembled(name)
    assembly.advance()
    models = zip(assembly.workers.ids, assembly.workers.models, strict=True)
    return {worker: flat(model) for worker, model in models}


def close(rows: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(rows, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_here_and_resumed(name: str, tmp_path: Path) -> None:
    """From the middle of the second round, when whatever is remembered has been written once."""
    expected = obvious(name)
    close(torch.stack(list(found(name).values())), expected)
    cut = assembled(name)
    cut.advance(partial(saved, cut, tmp_path, 5))
    resumed = assembled(name)
    checkpoints.load(resumed, checkpoints.checkpoints(tmp_path)[-1])
    assert resumed.workers.step == 5
    resumed.advance()
    close(torch.stack([flat(model) for model in resumed.workers.models]), expected)


def saved(assembly: Assembly, folder: Path, step: int) -> None:
    if assembly.workers.step == step:
        checkpoints.save(assembly, folder, barrier, {})


def test_each_of_them_is_another_method() -> None:
    ends = [obvious(name) for name in CASES]
    for index, one in enumerate(ends):
        assert all((one - other).abs().max() > 1e-6 for other in ends[:index])


def all_found() -> list[dict[int, Tensor]]:
    return [found(name) for name in CASES]


def test_in_four_processes() -> None:
    parts = harness.run(4, all_found, seconds=240)
    for index, name in enumerate(CASES):
        by_worker = {worker: row for part in parts for worker, row in part[index].items()}
        close(torch.stack([by_worker[worker] for worker in range(K)]), obvious(name))
