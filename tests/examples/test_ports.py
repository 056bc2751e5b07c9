"""The worked ports: each pair of programs runs, and the port does what is written by hand here."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import io
import os
import re
import warnings
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler

from tests.distributed.harness import run

ROOT = Path(__file__).parents[2]
PORTS = ROOT / "examples" / "ports"
PAGE = (ROOT / "docs" / "ports.md").read_text()

pytestmark = pytest.mark.timeout(300)

Worker = Generator[list[Tensor], None, list[Tensor] | None]
"""Yields its parameters at the start and after each step; may return what counts at the end."""


def read(name: str) -> str:
    return (PORTS / f"{name}.py").read_text()


def program(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"port_{name}", PORTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# By hand.


def by_hand(
    make: Callable[[int], Worker], h: int, outer: Any = None, parts: int = 1
) -> list[Tensor]:
    """Two workers in a list, which average after H steps and at the end.

    Args:
        outer: makes the optimizer of the anchor.
        parts: that take their steps in turn, each with its own sync.
    """
    workers = [make(rank) for rank in range(2)]
    random = [torch.get_rng_state()] * 2

    def turn() -> list[Any]:
        """What each worker yields, with random numbers of its own; at the end, what it returns."""
        found = []
        for rank, worker in enumerate(workers):
            torch.set_rng_state(random[rank])
            try:
                found.append(next(worker))
            except StopIteration as stop:
                found.append((stop.value,))
            random[rank] = torch.get_rng_state()
        return found

    whole = turn()
    anchor = [nn.Parameter(p.detach().clone()) for p in whole[0]]
    moved = outer(anchor) if outer else None
    turns = 0
    while isinstance(members := turn(), list) and not isinstance(members[0], tuple):
        turns += 1
        if -(-turns // parts) % h == 0:
            average(members, anchor, moved)
    if turns // parts % h:
        average(whole, anchor, moved)
    ends = [end for (end,) in members]
    return mean(ends) if ends[0] is not None else [p.detach() for p in whole[0]]


def mean(members: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [(a.detach() + b.detach()) / 2 for a, b in zip(*members, strict=True)]


def average(members: Sequence[Sequence[Tensor]], anchor: Sequence[Any], moved: Any) -> None:
    values = mean(members)
    if moved is not None:
        for part, value in zip(anchor, values, strict=True):
            part.grad = part.detach() - value
        moved.step()
        values = [part.detach() for part in anchor]
    for own in members:
        for part, value in zip(own, values, strict=True):
            part.data.copy_(value)


def mnist(rank: int) -> Worker:
    own = program("mnist")
    torch.manual_seed(1)
    dataset, _ = own.data()
    sampler = DistributedSampler(dataset, 2, rank, drop_last=True)
    loader = DataLoader(dataset, 32, sampler=sampler, drop_last=True)
    model = own.Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    yield list(model.parameters())
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        for x, y in islice(loader, 3):
            optimizer.zero_grad()
            nn.functional.nll_loss(model(x), y).backward()
            optimizer.step()
            yield list(model.parameters())
        optimizer.param_groups[0]["lr"] *= 0.7


def gpt(rank: int) -> Worker:
    own = program("gpt")
    torch.manual_seed(0)
    model, tokens = own.GPT(), own.text()
    optimizer = torch.optim.AdamW(own.groups(model), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    yield list(model.parameters())
    for step in range(5):
        optimizer.zero_grad()
        for part in range(2):
            (model(*own.batch(tokens, rank, 2 * step + part, 2)) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        yield list(model.parameters())


def gan(rank: int) -> Worker:
    own = program("gan")
    torch.manual_seed(0)
    models = own.build()
    g, d = (torch.optim.Adam(m.parameters(), lr=1e-3, betas=(0.5, 0.999)) for m in models)
    generator, discriminator = models
    torch.manual_seed(1 + rank)
    yield [p for model in models for p in model.parameters()]
    for _ in range(5):
        real, noise = own.ring(64), torch.randn(64, 4)
        fake = generator(noise).detach()
        d.zero_grad()
        losses = softplus(-discriminator(real)).mean() + softplus(discriminator(fake)).mean()
        losses.backward()
        d.step()
        yield list(discriminator.parameters())
        g.zero_grad()
        softplus(-discriminator(generator(noise))).mean().backward()
        g.step()
        yield list(generator.parameters())


def digits(name: str, make: Callable[[nn.Module], Sequence[Any]], rank: int) -> Worker:
    own = program(name)
    torch.manual_seed(0)
    model, (x, y) = own.build(), own.data()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
    optimizers = make(model)
    yield list(model.parameters())
    for step in range(5):
        inputs, targets = own.batch(x, y, rank, step, 32)
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        for optimizer in optimizers:
            optimizer.step()
        yield list(model.parameters())
        ema.update_parameters(model)
    return list(ema.module.parameters()) if name == "ema" else None


def sgd(model: nn.Module) -> list[Any]:
    return [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)]


def adamw(model: nn.Module) -> list[Any]:
    return [torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)]


def pair(model: nn.Module) -> Sequence[Any]:
    first, second, third = model[0].weight, model[2].weight, model[4].weight  # type: ignore[index]
    rest = [model[0].bias, model[2].bias, third, model[4].bias]  # type: ignore[index]
    return torch.optim.Muon([first, second], lr=0.02), torch.optim.AdamW(rest, lr=0.005)


diloco = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)

H = 2
HAND: dict[str, Callable[[], list[Tensor]]] = {
    "mnist": lambda: by_hand(mnist, H),
    "gpt": lambda: by_hand(gpt, H, diloco),
    "gan": lambda: by_hand(gan, H, parts=2),
    "ema": lambda: by_hand(partial(digits, "ema", sgd), H),
    "lora": lambda: by_hand(partial(digits, "lora", adamw), H),
    "muon": lambda: by_hand(partial(digits, "muon", pair), H),
}
SMALL = {
    "mnist": ["--epochs", "2", "--steps-per-epoch", "3"],
    "gpt": ["--steps", "5", "--batch-size", "2"],
}


# As programs.


def both_run(folder: str, names: Sequence[str], *more: str) -> dict[str, Any]:
    """The weights at the end of every port, and what it has sent; each plain program runs too."""
    torch.set_default_dtype(torch.float64)
    if more:
        warnings.simplefilter("ignore")  # The compiler's own modules warn of each other.
    found = {}
    try:
        for name in names:
            arguments = [*SMALL.get(name, ["--steps", "5"]), *more]
            if name in ("mnist", "gan"):
                arguments += ["--save", f"{folder}/{name}"]
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                if not more:
                    program(f"{name}_before").main(arguments)
                model, optimizers = program(name).main([*arguments, "--local-steps", str(H)])
            weights = [p.detach() for p in model.parameters()]
            sent = [(o.ledger.levels[0].calls, o.ledger.levels[0].bytes) for o in optimizers]
            trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
            steps = optimizers[0].steps
            found[name] = {"weights": weights, "sent": sent, "steps": steps, "trained": trained}
            assert bool(printed.getvalue()) == (dist.get_rank() == 0)
    finally:
        torch.set_default_dtype(torch.float32)
    return found


def test_ports_do_what_is_written_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_rank = run(2, both_run, str(tmp_path), list(HAND), seconds=250)
    torch.set_default_dtype(torch.float64)
    try:
        for name, simulated in HAND.items():
            expected = simulated()
            for found in by_rank:
                for own, hand in zip(found[name]["weights"], expected, strict=True):
                    torch.testing.assert_close(own, hand, rtol=1e-12, atol=1e-12, msg=name)
    finally:
        torch.set_default_dtype(torch.float32)
    assert (tmp_path / "mnist" / "model.safetensors").exists()
    assert (tmp_path / "gan" / "model.safetensors").exists()
    for name, found in by_rank[0].items():
        syncs = -(-found["steps"] // H)
        assert [calls for calls, _ in found["sent"]] == [syncs] * len(found["sent"]), name
    check_table(by_rank[0])


ROW = r"^\| \[(\w+)\]\(.*?\| -(\d+) \+(\d+) \| ([\d.]+) KB → ([\d.]+) KB, (\d+) \|"


def check_table(found: dict[str, Any]) -> None:
    """What a worker sends in a step, in float32, with DDP and with the port's own H."""
    for name, _, _, before, after, h in re.findall(ROW, PAGE, re.M):
        own = found[name]
        whole = 4 * own["trained"] / 1000
        synced = sum(size / calls for calls, size in own["sent"]) / 2 / 1000
        assert float(before) == pytest.approx(whole, rel=0.04), name
        assert float(after) == pytest.approx(synced / int(h), abs=0.06, rel=0.06), name


@pytest.mark.skipif(
    "LOCALSGD_COMPILE" not in os.environ,
    reason="the C++ compiler takes minutes on two cores; set LOCALSGD_COMPILE=1",
)
@pytest.mark.timeout(1000)
def test_the_compiled_gpt_does_what_is_written_by_hand(tmp_path: Path) -> None:
    by_rank = run(2, both_run, str(tmp_path), ["gpt"], "--compile", seconds=900)
    torch.set_default_dtype(torch.float64)
    try:
        expected = HAND["gpt"]()
    finally:
        torch.set_default_dtype(torch.float32)
    for found in by_rank:
        for own, hand in zip(found["gpt"]["weights"], expected, strict=True):
            torch.testing.assert_close(own, hand, rtol=1e-9, atol=1e-9)


def changed(name: str) -> tuple[int, int]:
    """Lines of a program that the port takes away and adds, without its first words and blanks."""
    before, after = (
        [line for line in read(n).split('"""', 2)[2].splitlines() if line]
        for n in (f"{name}_before", name)
    )
    marks = [line[0] for line in difflib.ndiff(before, after)]
    return marks.count("-"), marks.count("+")


def test_the_table_counts_lines_and_messages() -> None:
    rows = re.findall(ROW, PAGE, re.M)
    assert {name: (int(taken), int(added)) for name, taken, added, *_ in rows} == {
        name: changed(name) for name in HAND
    }
    for name, *_, h in rows:
        default = re.search(r'"--local-steps", type=int, default=(\d+)', read(name))
        assert default is not None
        assert default[1] == h
