"""What Lin et al. (2020) measured, to put the models beside. Nothing here is computed."""

from __future__ import annotations

from typing import NamedTuple

WORKERS = 16
"""K of all of it: 8 servers of 2 GPUs, 10 Gbit/s between servers, B = 128."""

LOCAL_STEPS = (1, 16, 32)


class Network(NamedTuple):
    """A row of the speed-up tables."""

    model: str
    data: str


SECOND_PHASE: dict[Network, tuple[float, float, float]] = {
    Network("ResNet-20", "CIFAR-10"): (9.45, 17.33, 20.80),
    Network("ResNet-20", "CIFAR-100"): (8.75, 15.00, 17.50),
    Network("DenseNet-40-12", "CIFAR-10"): (8.31, 15.43, 18.00),
    Network("DenseNet-40-12", "CIFAR-100"): (8.04, 15.50, 16.69),
    Network("WRN-28-10", "CIFAR-10"): (5.33, 15.52, 17.66),
    Network("WRN-28-10", "CIFAR-100"): (5.29, 15.09, 17.69),
}
"""Table post_local_sgd_across_arch_and_tasks_speedup_for_second_phase, for `LOCAL_STEPS`.

The paper's two tables of speed-ups say WideResNet-28-12, all else in it WideResNet-28-10: a slip.
Some are above K: the one GPU that they are compared with ran the same algorithm with its overheads.
"""

WHOLE_RUN: dict[Network, tuple[float, float, float]] = {
    Network("ResNet-20", "CIFAR-10"): (9.45, 12.24, 13.00),
    Network("ResNet-20", "CIFAR-100"): (8.75, 11.05, 11.67),
    Network("DenseNet-40-12", "CIFAR-10"): (8.31, 10.80, 11.37),
    Network("DenseNet-40-12", "CIFAR-100"): (8.04, 10.59, 10.85),
    Network("WRN-28-10", "CIFAR-10"): (5.33, 7.94, 8.19),
    Network("WRN-28-10", "CIFAR-100"): (5.29, 7.83, 8.14),
}
"""Table post_local_sgd_across_arch_and_tasks_speedup, where the first half of a run has H = 1."""

MINUTES: dict[int, float] = {
    1: 20.07,
    2: 13.95,
    4: 10.48,
    8: 9.20,
    16: 8.57,
    32: 8.32,
    64: 9.22,
    128: 9.23,
    256: 9.50,
    512: 10.30,
    1024: 10.65,
}
"""Table multi_gpus_local_sgd_extreme_time: ResNet-20 on CIFAR-10, 300 epochs, by H."""

LOCAL_STEPS_OF_RUN = 300 * 25
"""Local steps of a worker in it: 300 epochs of ceil(50,000 / (16 * 128)) = 25, the last of an epoch
short, as in the paper's code. Its Eq. comm_cost, with batches across epochs, has 7,325 of them.
"""

SCALING: dict[Network, tuple[float, float, float]] = {
    Network("ResNet-20", "CIFAR-10"): (0.27, 0.041, 151.85),
    Network("ResNet-20", "CIFAR-100"): (0.27, 0.041, 151.85),
    Network("ResNet-50", "ImageNet-1k"): (25.00, 7.7, 308.00),
    Network("DenseNet-40-12", "CIFAR-10"): (1.06, 0.28, 264.15),
    Network("DenseNet-40-12", "CIFAR-100"): (1.10, 0.28, 254.55),
    Network("WRN-28-10", "CIFAR-10"): (36.48, 5.24, 143.64),
    Network("WRN-28-10", "CIFAR-100"): (36.54, 5.24, 143.40),
}
"""Table scaling_ratio_model: millions of parameters, billions of operations, ratio."""
