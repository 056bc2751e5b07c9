"""K workers on one device: eager, compiled, on several streams, or as one CUDA graph.

A step of ResNet-20 is some 600 small kernels for each worker. Started one by one they cost more
time than they take; replayed as a graph whose branches are workers on streams of their own, they
fill the GPU. The graph holds forward and backward of all workers; the update and the sync
follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu.data import Feed
from localsgd.averaging.build import build_levels
from localsgd.averaging.placement import AnyLevel, placement_of, row_multiple
from localsgd.averaging.topology import Topology
from localsgd.train.data import models
from localsgd.train.data.tasks.images import ImageTask
from localsgd.train.engine.hosted import Inner, Workers


@dataclass(frozen=True)
class Variant:
    """One way to compute K workers.

    Args:
        bfloat16: autocast.
        compile: `torch.compile` forward and loss.
        graph: replay forward and backward of all workers as a CUDA graph.
        streams: on which workers run side by side; one after the other for 1.
    """

    bfloat16: bool = False
    channels_last: bool = False
    compile: bool = False
    graph: bool = False
    streams: int = 1

    @property
    def needs_cuda(self) -> bool:
        return self.graph or self.streams > 1


VARIANTS = {
    "fp32": Variant(),
    "bf16": Variant(bfloat16=True, channels_last=True),
    "bf16-nchw-graph": Variant(bfloat16=True, graph=True),
    "bf16-graph": Variant(bfloat16=True, channels_last=True, graph=True),
    "bf16-graph-4": Variant(bfloat16=True, channels_last=True, graph=True, streams=4),
    "bf16-graph-16": Variant(bfloat16=True, channels_last=True, graph=True, streams=16),
    "bf16-compile": Variant(bfloat16=True, channels_last=True, compile=True),
    "bf16-compile-graph-4": Variant(
        bfloat16=True, channels_last=True, compile=True, graph=True, streams=4
    ),
    "bf16-compile-graph-16": Variant(
        bfloat16=True, channels_last=True, compile=True, graph=True, streams=16
    ),
}


class Lanes:
    """Streams that fork from the current one and join it again; none if fewer than two."""

    def __init__(self, count: int) -> None:
        self._lanes = [torch.cuda.Stream() for _ in range(count if count > 1 else 0)]
        self._main: torch.cuda.Stream | None = None

    def part(self) -> None:
        """Forks the streams: work after `enter` may run in parallel to the current stream."""
        if self._lanes:
            self._main = torch.cuda.current_stream()

    def enter(self, worker: int) -> None:
        """Switches to this worker's stream."""
        if self._lanes and self._main is not None:
            lane = self._lanes[worker % len(self._lanes)]
            lane.wait_stream(self._main)  # for the gradients to be zero
            torch.cuda.set_stream(lane)

    def join(self) -> None:
        """Returns to the first stream, which waits for all others."""
        if self._lanes and self._main is not None:
            torch.cuda.set_stream(self._main)
            for lane in self._lanes:
                self._main.wait_stream(lane)


class Hosted:
    """K workers and their levels: the `Steps` of the core loop.

    Args:
        task: on the device.
        model: by name.
        workers, batch: K and B.
        variant: how.
    """

    def __init__(
        self,
        task: ImageTask,
        model: str,
        workers: int,
        batch: int,
        variant: Variant,
        *,
        seed: int = 0,
    ) -> None:
        device = task.train.pixels.device
        first: nn.Module = models.build(model, task, seed).to(device)
        if variant.channels_last:
            first.to(memory_format=torch.channels_last)  # pyrefly: ignore
        self.feed = Feed(task, workers, batch, channels_last=variant.channels_last, seed=seed)
        self._lanes = Lanes(variant.streams)
        self._forward = _forward(device, variant)
        sgd = partial(torch.optim.SGD, lr=1.0, momentum=0.9, nesterov=True, fused=True)
        inner = Inner(sgd, 1e-4, models.batch_norm(first))  # weight decay on all but batch norm
        self._placement = placement_of(Topology.parse(workers))
        self.workers = Workers(first, self._loss, inner, range(workers), row_multiple(workers))
        self._backward: Callable[[], None] = self._eagerly
        if variant.graph:
            self._backward = self._captured()

    @property
    def step(self) -> int:
        return self.workers.step

    def backward(self) -> None:
        self.feed.fill(self.workers.step)
        self._backward()

    def apply(self, learning_rate: float) -> None:
        self.workers.apply(learning_rate)

    def levels(self, rows: Tensor) -> list[AnyLevel]:
        """The plain mean over `rows`, the workers' models or gradients."""
        return build_levels(self._placement, rows)

    def _loss(self, model: nn.Module, worker: int, step: int) -> Tensor:
        self._lanes.enter(worker)
        return self._forward(model, *self.feed.batch(worker))

    def _eagerly(self) -> None:
        self._lanes.part()
        self.workers.backward()
        self._lanes.join()

    def _captured(self) -> Callable[[], None]:
        """Records `_eagerly` after it has run a few times, whose traces are removed."""
        statistics = [rows.clone() for _, rows in self.workers.buffers]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._eagerly()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._eagerly()
        for (_, rows), before in zip(self.workers.buffers, statistics, strict=True):
            rows.copy_(before)
        self.workers.take_losses()

        def replay() -> None:
            graph.replay()
            for row in range(len(self.workers.ids)):
                self.workers.loss_counts[row] += 1

        return replay


def _forward(
    device: torch.device, variant: Variant
) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    def forward(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        # Casts that are kept from one pass to the next have no place in a graph.
        with torch.autocast(device.type, torch.bfloat16, variant.bfloat16, cache_enabled=False):
            return F.cross_entropy(model(x).float(), y)

    return torch.compile(forward) if variant.compile else forward
