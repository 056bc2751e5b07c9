"""Run by `test_run.py`, in two processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch

from localsgd.train.engine.run_folder import Folder
from tests.train.runs.test_run import trained

if os.environ["RANK"] == "1":  # It reads late: the folder, which is the first one's, is to wait.
    metrics = Folder.metrics

    def late(self: Folder) -> list[dict[str, Any]]:
        time.sleep(0.3)
        return metrics(self)

    Folder.metrics = late  # type: ignore[method-assign]

results = [trained(local_steps=steps, reduction="ordered") for steps in (1, 3)]
found = {
    "weights": [result.weights["first.weight"] for result in results],
    "workers": sorted(results[1].local_weights),
    "steps": [[row["step"] for row in result.rows] for result in results],
}
torch.save(found, Path(sys.argv[1]) / f"{os.environ['RANK']}.pt")
