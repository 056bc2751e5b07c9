"""What is run: fixed before the first run, for all methods alike.

Fashion-MNIST, 8,000 training images (balanced by class), all 10,000 test images; a perceptron with
64 hidden units (50,890 parameters); K = 16 workers of batch 16, 16 epochs, 500 steps of each
worker; SGD with Nesterov momentum 0.9 on every worker, learning rate 0.02 per 64 samples (which a
run of mini-batch SGD with another seed preferred to 0.01 and did not tell from 0.05) scaled
linearly to 0.08, raised over the first epoch, divided by 10 after 50 % and 75 %; weight decay 1e-4.
H = 8 where a method has an H. Nothing is tuned for any method: what is not given here is the
documented default. The same seeds, and so the same batches and starting weights, for all.

Changed after first runs: LARS had a trust coefficient of 0.02, twenty times the default (46.6 and
75.2 % with two seeds), and late means half of the correction by default, which is an arm of its own
now.
"""

from __future__ import annotations

from typing import Any

SEEDS = (0, 1, 2)

COMMON: dict[str, Any] = {
    "task": "fashion-mnist",
    "model": "mlp-64",
    "train_samples": 8000,
    "workers": 16,
    "batch": 16,
    "epochs": 16.0,
    "lr": 0.02,
    "lr_batch": 64,
    "lr_warmup": 1.0,
    "weight_decay": 1e-4,
    "local_steps": (8,),
    "evaluate_every": 16.0,
    "evaluate_local": "never",
}
BLOCKS: dict[str, Any] = {"workers": None, "topology": "4x4", "local_steps": (2, 4)}

ARMS: dict[str, dict[str, Any]] = {
    "mini-batch SGD": {"method": "mini-batch"},
    "local SGD": {"method": "local"},
    "post-local SGD": {"method": "post-local"},
    "local SGD, H warmed up over 4 epochs": {"method": "local-warmup", "step_warmup": 4.0},
    "hierarchical 4x4, H = 2, H^b = 4": {"method": "hierarchical", **BLOCKS},
    "the same, post-local": {"method": "hierarchical-post-local", **BLOCKS},
    "batch growth": {"method": "batch-growth"},
    "post-local, sign": {"method": "post-local", "compression": "sign"},
    "post-local, EF-sign": {"method": "ef-sign"},
    "local, EF-sign": {"method": "local", "compression": "ef-sign"},
    "local, EF-sign, gathered": {
        "method": "local",
        "compression": "ef-sign",
        "compression_way": "gather",
    },
    "H = 1, EF-sign": {"method": "mini-batch", "compression": "ef-sign"},
    "local, majority vote": {"method": "local", "compression": "majority"},
    "local, int8": {"method": "local", "compression": "int8"},
    "local, top 1 %": {"method": "local", "compression": "top-k"},
    "local, bfloat16": {"method": "local", "compression": "bfloat16"},
    "local, PowerSGD of rank 2": {"method": "local", "compression": "power-sgd"},
    "local signSGD (sign descent)": {"method": "local", "optimizer": "sign", "lr": 2e-4},
    "hybrid momentum 0.9/0.3": {"method": "block-momentum"},
    "SlowMo": {"method": "slowmo"},
    "BMUF": {"method": "bmuf"},
    "DiLoCo": {"method": "diloco"},
    "local AdamW, moments averaged": {"method": "local-adam"},
    "local AdamW, moments kept": {"method": "local-adam", "inner_state": ""},
    "local SGD, momentum reset": {"method": "local", "inner_state": "momentum_buffer=reset"},
    "local SGD, momentum averaged": {"method": "local", "inner_state": "momentum_buffer=average"},
    "quadratic rule (cosine)": {"method": "qsr"},
    "local SGD (cosine)": {"method": "local", "lr_schedule": "cosine"},
    "AdaComm": {"method": "adacomm"},
    "H halved every 4 epochs": {"method": "decreasing", "adapt_every": 4.0},
    "post-local at a plateau": {"method": "plateau"},
    "4 cycles, H = 1 then 8 in each": {"method": "cyclic"},
    "delayed averaging": {"method": "delayed"},
    "the same, half of the correction": {"method": "delayed", "correction": 0.5},
    "4 fragments in turns, one late": {"method": "streaming", "local_steps": (2,)},
    "4 fragments, half of the correction": {
        "method": "streaming",
        "local_steps": (2,),
        "correction": 0.5,
    },
    "LARS": {"method": "local", "optimizer": "lars", "lr": 1.0},
    "LARC": {"method": "local", "optimizer": "larc", "trust": 0.02},
    "mini-batch SGD, gradient noise": {"method": "mini-batch", "noise": 1e-5},
    "local SGD, learning rate by sqrt(K B)": {"method": "local", "lr_scaling": "sqrt"},
    "local SGD, learning rate by B": {"method": "local", "lr_scaling": "local"},
    "sorted by label": {"method": "local", "partition": "by-label"},
    "Dirichlet(0.3) labels": {"method": "local", "partition": "dirichlet:0.3"},
    "the same, weighted by samples": {
        "method": "local",
        "partition": "dirichlet:0.3",
        "weighting": "samples",
    },
    "the same, short ones leave, FedNova": {
        "method": "local",
        "partition": "dirichlet:0.3",
        "exhausted": "leave",
        "weighting": "fednova",
    },
    "half of the workers 4x slower": {"method": "local", "slowdown": (1.0, 4.0) * 8},
    "the same, FedNova": {
        "method": "local",
        "slowdown": (1.0, 4.0) * 8,
        "weighting": "fednova",
    },
}

MOMENTA = (
    (0.0, 0.0),
    (0.9, 0.0),
    *((0.9, m) for m in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)),
)
"""Local and global momentum: the rows of the paper's table, at H = 1."""

TABLE_OF_MOMENTA = {
    f"momentum {local:g} / {outer:g}": {
        "method": "block-momentum",
        "local_steps": (1,),
        "momentum": local,
        "outer_momentum": outer,
    }
    for local, outer in MOMENTA
}


def settings(arm: str, seed: int) -> dict[str, Any]:
    """The settings of one run."""
    return {**COMMON, **(ARMS | TABLE_OF_MOMENTA)[arm], "seed": seed}
