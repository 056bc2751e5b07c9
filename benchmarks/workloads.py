"""What is trained and synchronised here: random images, models, lists of shapes.

Shapes: B samples of a batch · K workers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from localsgd.averaging.placement import Placement, placement_of, row_multiple
from localsgd.averaging.topology import Topology
from localsgd.rows.layout import Layout
from localsgd.train.config.complete import complete_run
from localsgd.train.config.run import Run
from localsgd.train.data import models
from localsgd.train.data.tasks import card
from localsgd.train.data.tasks.augment import crop_and_flip
from localsgd.train.data.tasks.images import Images, ImageTask
from localsgd.train.engine.assembly import Assembly, assemble

Shapes = list[tuple[int, ...]]


def random_cifar(samples: int = 4096, seed: int = 0) -> ImageTask:
    """CIFAR-10 in all but its pixels and labels, which are noise; cropped and flipped like it."""
    draw = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (samples, 3, 32, 32), generator=draw, dtype=torch.uint8)
    images = Images(pixels, torch.randint(0, 10, (samples,), generator=draw))
    test = Images(images.pixels[:16], images.labels[:16])
    return ImageTask(
        card=replace(card("cifar10"), train_size=samples, test_size=16),
        train=images,
        test=test,
        mean=(127.5,) * 3,
        std=(64.0,) * 3,
        augment=crop_and_flip,
    )


def inner(model: nn.Module, weight_decay: float = 1e-4) -> torch.optim.Optimizer:
    """The paper's: Nesterov 0.9, no weight decay on batch norm; as PyTorch makes it by default."""
    spared = models.batch_norm(model)
    named = list(model.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in named if name not in spared], "weight_decay": weight_decay},
        {"params": [p for name, p in named if name in spared], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)


def loop(
    task: ImageTask, model: nn.Module, optimizer: torch.optim.Optimizer, batch: int
) -> Callable[[], None]:
    """A step of a plain training loop."""
    draw = torch.Generator().manual_seed(1)
    batches = _batches(task.train_size, batch)

    def step() -> None:
        x, y = task.train_batch(next(batches), draw)
        optimizer.zero_grad()
        task.loss(model(x), y).backward()
        optimizer.step()

    return step


def _batches(samples: int, batch: int) -> Iterator[Tensor]:
    for epoch in itertools.count():
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(epoch))
        yield from order[: samples - samples % batch].split(batch)


def assembled(
    task: ImageTask,
    model: str,
    batch: int,
    *,
    placed: Callable[[Placement], Placement] = lambda placement: placement,
    lr: float = 0.05,
    **settings: Any,
) -> Assembly:
    """The trainer on `task`, placed on this process, or on what `placed` makes of that."""
    run = Run(task="cifar10", model=model, batch=batch, lr=lr, lr_scaling="none", **settings)
    run = complete_run(run, task.card)
    placement = placed(placement_of(Topology.parse(run.topology or 1)))
    return assemble(run, task, placement, torch.device("cpu"))


def advance(assembly: Assembly, steps: int) -> None:
    """Takes further steps by the trainer's own loop, and ends with a sync of all levels."""
    assembly.advance(steps=assembly.workers.step + steps)


def shapes_of(model: nn.Module) -> Shapes:
    return [tuple(parameter.shape) for parameter in model.parameters()]


def wide_resnet() -> Shapes:
    """The tensors of WRN-28-10 for CIFAR-10: 36,479,194 scalars in 80 tensors."""
    with torch.device("meta"):
        return shapes_of(models.build("wrn28-10", random_cifar(16), seed=0))


def scalars(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes)


class Holder(nn.Module):
    """Parameters of given shapes, with values from a seed, and nothing to compute."""

    def __init__(self, shapes: Shapes, seed: int = 0) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.tensors = nn.ParameterList(torch.rand(shape, generator=draw) for shape in shapes)


def deep_mlp(layers: int = 35, width: int = 1020) -> nn.Sequential:
    """Equal square layers: 36.4 million scalars, no tensor more than a 35th of them."""
    return nn.Sequential(
        *(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU()))
    )


def layout_of(shapes: Shapes, members: int) -> Layout:
    """The layout of a row that `members` can average."""
    named = ((str(i), torch.empty(shape, device="meta")) for i, shape in enumerate(shapes))
    return Layout.of(named, multiple=row_multiple(members))


def normal_rows(layout: Layout, seed: int) -> Tensor:
    """`[1, n]`, standard normal where tensors lie."""
    rows = layout.rows(1, "cpu")
    draw = torch.Generator().manual_seed(seed)
    for view in layout.views(rows[0]).values():
        view.normal_(generator=draw)
    return rows
