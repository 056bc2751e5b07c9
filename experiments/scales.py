"""How large the studies are: seconds, CPU minutes, CPU days, or as in the paper.

Fixed before the runs. `smoke` shows that everything works and nothing else. `small` keeps the
paper's proportions where a CPU allows it: K = 16 workers whose global batch is 5 % of the training
set (4 % in the paper), linear scaling from a single worker's rate, warm-up over 1/60 of the run,
decays at 50 % and 75 %, H up to 64. Its second phase is short: 234 steps, in which H = 16 has 15
rounds; the paper's has 3,660. No image is augmented. The rates are the ones that an earlier study
of the same network found to fit the training data (`landscape/design.py`); nothing is tuned unless
that is asked for.

`medium` is the paper's network, data and procedure with a fifth of the images and 80 epochs, the
smallest size at which its main claim can be seen (`studies/headline.py` has the design). It trains
in bfloat16 (autocast, weights in float32), which takes 0.7 of float32's time on a processor with
AVX-512-BF16, and is emulated, and so slower than float32, on one without it or AMX.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.study import Scale, ScaleName

SMOKE: dict[str, Any] = {
    "task": "digits",
    "model": "mlp",
    "train_samples": 640,
    "workers": 16,
    "batch": 4,
    "epochs": 1.0,
    "lr": 0.05,
    "lr_batch": 16,
    "weight_decay": 1e-4,
    "evaluate_every": 0.5,
}
SMALL: dict[str, Any] = {
    "task": "fashion-mnist",
    "model": "small-cnn-8",
    "train_samples": 5000,
    "workers": 16,
    "batch": 16,
    "epochs": 24.0,
    "lr": 0.1,
    "lr_batch": 64,
    "weight_decay": 1e-4,
    "batch_norm": "recalibrated",
    "evaluate_every": 4.0,
    "evaluate_local": "never",
}
LIGHT: dict[str, Any] = {
    "model": "mlp-64",
    "lr": 0.02,
    "evaluate_every": 1.0,
}
"""A perceptron takes a seventh of the time. Its rate is that of `family/design.py`."""
MEDIUM: dict[str, Any] = {
    "task": "cifar10",
    "model": "resnet20-identity",
    "train_samples": 10_000,
    "workers": 16,
    "batch": 32,
    "epochs": 80.0,
    "lr": 0.2,
    "lr_batch": 128,
    "lr_warmup": 1.333,
    "weight_decay": 1e-4,
    "precision": "bfloat16",
    "channels_last": True,
    "evaluate_every": 5.0,
    "evaluate_local": "never",
}
PAPER: dict[str, Any] = {
    "task": "cifar10",
    "model": "resnet20",
    "workers": 16,
    "batch": 128,
    "epochs": 300.0,
    "lr": 0.2,
    "lr_batch": 128,
    "lr_warmup": 5.0,
    "weight_decay": 1e-4,
}

SCALES: dict[ScaleName, Scale] = {
    "smoke": Scale("smoke", SMOKE, seeds=1, main_seeds=2),
    "small": Scale("small", SMALL, seeds=3, main_seeds=5, light=LIGHT),
    "medium": Scale("medium", MEDIUM, seeds=5, main_seeds=10, tunes=True),
    "paper": Scale("paper", PAPER, seeds=3, main_seeds=3, tunes=True),
}


def scale_of(name: ScaleName, seeds: int | None = None, *, tunes: bool = False) -> Scale:
    """A scale, with the given `seeds` for all arms, if any, and tuned baselines if wanted."""
    found = replace(SCALES[name], tunes=tunes or SCALES[name].tunes)
    return found if seeds is None else replace(found, seeds=seeds, main_seeds=seeds, asked=seeds)
