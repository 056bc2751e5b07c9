"""Run by `test_run.py`, in two processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch

from tests.train.runs.test_run import trained

results = [trained(local_steps=steps, reduction="ordered") for steps in (1, 3)]
found = {
    "weights": [result.weights["first.weight"] for result in results],
    "workers": sorted(results[1].local_weights),
}
torch.save(found, Path(sys.argv[1]) / f"{os.environ['RANK']}.pt")
