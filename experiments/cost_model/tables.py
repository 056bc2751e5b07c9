"""The paper's cost figures beside the models', as tables in Markdown: `python -m
experiments.cost_model`.

Everything here is modelled, except what `experiments/cost_model/published.py` has from the paper
and what `experiments/cost_model/scaling.py` counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from experiments.cost_model import published
from experiments.cost_model.published import Network
from experiments.cost_model.scaling import Size, size_of
from experiments.markdown import table
from localsgd.cost.allreduce import ALGORITHMS, Link
from localsgd.cost.counts import syncs
from localsgd.cost.equation import Cluster, printed, seconds
from localsgd.cost.speedup import Clock, of_local_steps, of_run, price_from
from localsgd.train.data.models.densenet import DenseNet
from localsgd.train.data.models.imagenet_resnet import STAGES, WIDTH, ImageNetResNet
from localsgd.train.data.models.resnet import ResNet
from localsgd.train.data.models.wide_resnet import WideResNet

FITTED = (1, 2, 4, 8, 16, 32)
"""The H that T(H) is fitted to: for larger H times rise again, for which the paper has no model."""

# How to build the paper's networks, and the shape of a sample.
NETWORKS: dict[Network, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    Network("ResNet-20", "CIFAR-10"): (lambda: ResNet(20, 3, 10), (3, 32, 32)),
    Network("ResNet-20", "CIFAR-100"): (lambda: ResNet(20, 3, 100), (3, 32, 32)),
    Network("ResNet-50", "ImageNet-1k"): (
        lambda: ImageNetResNet(STAGES[50], 3, 1000, WIDTH),
        (3, 224, 224),
    ),
    Network("DenseNet-40-12", "CIFAR-10"): (lambda: DenseNet(40, 12, 3, 10), (3, 32, 32)),
    Network("DenseNet-40-12", "CIFAR-100"): (lambda: DenseNet(40, 12, 3, 100), (3, 32, 32)),
    Network("WRN-28-10", "CIFAR-10"): (lambda: WideResNet(28, 10, 3, 10), (3, 32, 32)),
    Network("WRN-28-10", "CIFAR-100"): (lambda: WideResNet(28, 10, 3, 100), (3, 32, 32)),
}


def counted(network: Network) -> Size:
    """A network of the paper, counted in the package's own model."""
    build, shape = NETWORKS[network]
    with torch.device("meta"):  # Its shapes are enough.
        return size_of(build(), shape)


def scaling() -> str:
    """Parameters, operations and their ratio, the paper's and ours."""
    rows = []
    for network, (millions, billions, ratio) in published.SCALING.items():
        size = counted(network)
        own = [f"{size.parameters:,}", f"{size.multiplications:,}", f"{size.ratio:.2f}"]
        rows.append([*network, f"{millions:.2f} M", f"{billions:g} G", f"{ratio:.2f}", *own])
    header = ["model", "data", "parameters", "operations", "ratio"]
    return _table([*header, "parameters, counted", "multiply-adds, counted", "ratio"], rows)


def counts() -> str:
    """Syncs within 16 steps where H H^b = 16, as Table multi_gpus_hierarchical_local_sgd."""
    rows = []
    for local_steps in (1, 2, 4, 8, 16):
        count = syncs(16, 1, 1, local_steps, 16 // local_steps)
        rows.append([local_steps, 16 // local_steps, count.inside, count.across])
    return _table(["H", "H^b", "inside a server", "of all"], rows)


def equation(across: float = 10.0) -> str:
    """Eq. comm_cost for 300 epochs of CIFAR-10, B = 128, with C1 = 1: as printed, and as a time."""
    rows = []
    for servers in (8, 4, 2):
        cluster = Cluster(published.WORKERS, servers, 1.0, across)
        for local_steps, block_steps in ((1, 1), (16, 1), (1, 16), (2, 8), (4, 4), (8, 2)):
            count = syncs(300 * 50_000, cluster.workers, 128, local_steps, block_steps)
            rows.append(
                [
                    f"{servers}x{cluster.workers // servers}",
                    local_steps,
                    block_steps,
                    f"{count.inside:,}",
                    f"{count.across:,}",
                    f"{printed(cluster, count):,.0f}",
                    f"{seconds(cluster, count):,.0f}",
                ]
            )
    return _table(["servers", "H", "H^b", "inside", "of all", "as printed", "as a time"], rows)


def whole_runs() -> str:
    """The speed-up of whole runs from that of the second phase, for `LOCAL_STEPS`."""
    rows = []
    for network, phase in published.SECOND_PHASE.items():
        row: list[object] = [*network]
        for speedup, measured in zip(phase[1:], published.WHOLE_RUN[network][1:], strict=True):
            derived = of_run([(0.5, phase[0]), (0.5, speedup)])
            row += [f"{speedup:.2f}", f"{derived:.2f}", f"{measured:.2f}"]
        rows.append(row)
    header = ["model", "data"]
    for local_steps in published.LOCAL_STEPS[1:]:
        header += [f"2nd phase, H = {local_steps}", "whole run, derived", "whole run, paper"]
    return _table(header, rows)


def predicted() -> str:
    """The speed-up of whole runs from H = 1 alone: S(H) = K / (1 + price / H)."""
    rows = []
    for network, whole in published.WHOLE_RUN.items():
        price = price_from(published.WORKERS, whole[0])
        row: list[object] = [*network, f"{whole[0]:.2f}", f"{price:.2f}"]
        for local_steps, measured in zip(published.LOCAL_STEPS[1:], whole[1:], strict=True):
            second = of_local_steps(published.WORKERS, price, local_steps)
            speedup = of_run([(0.5, whole[0]), (0.5, second)])
            row += [f"{speedup:.2f}", f"{measured:.2f}", f"{100 * (speedup / measured - 1):+.1f} %"]
        rows.append(row)
    header = ["model", "data", "H = 1, paper", "price in steps"]
    for local_steps in published.LOCAL_STEPS[1:]:
        header += [f"H = {local_steps}, predicted", "paper", "error"]
    return _table(header, rows)


def minutes() -> str:
    """T(H) = compute + syncing / H beside the paper's minutes."""
    clock = fitted_clock()
    errors = clock.errors(published.MINUTES)
    rows = [
        [h, f"{measured:.2f}", f"{clock.time(h):.2f}", f"{100 * errors[h]:+.1f} %"]
        for h, measured in published.MINUTES.items()
    ]
    return _table(["H", "paper, minutes", "T(H), minutes", "error"], rows)


def fitted_clock() -> Clock:
    """The clock of the paper's training times, in minutes."""
    return Clock.fit({h: published.MINUTES[h] for h in FITTED})


def all_reduces(size: float = 100e6, rate: float = 10e9, alpha: float = 50e-6) -> str:
    """Seconds for an all-reduce of 100 MB over 10 Gbit/s and 50 microseconds a message."""
    link = Link.of_rate(rate, alpha)
    rows = []
    for workers in (1, 2, 3, 4, 8, 16, 48, 96, 192, 1024):
        times = [make(workers, size).seconds(link) for make in ALGORITHMS.values()]
        rows.append([workers, *(f"{time:.3f}" for time in times)])
    return _table(["K", *(f"{name}, s" for name in ALGORITHMS)], rows)


def page() -> dict[str, str]:
    """All tables by title."""
    return {
        "Scaling ratio": scaling(),
        "Syncs within 16 steps": counts(),
        "Eq. comm_cost with C2 = 10 C1": equation(),
        "Whole runs, from their second phase": whole_runs(),
        "Whole runs, from H = 1 alone": predicted(),
        "Training time over H": minutes(),
        "All-reduce of 100 MB": all_reduces(),
    }


def _table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return table(headings, [[str(one) for one in row] for row in rows])
