"""The environment that a run's bits may depend on: code, machine, and torch's build."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from typing import Any

import numpy as np
import torch

from localsgd.train.engine.machine import code, instructions, processor
from localsgd.version import __version__


def environment(device: torch.device, processes: int) -> dict[str, Any]:
    """The environment that a result may depend on."""
    cuda = device.type == "cuda"
    return {
        "localsgd": __version__,
        **source(),
        "torch": torch.__version__,
        "torch_commit": torch.version.git_version,
        "torch_build": [line.strip(" -") for line in torch.__config__.show().splitlines() if line],
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if cuda else processor(),
        "processor": processor(),
        "instruction_sets": instructions(),
        "torch_instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "processes": processes,
        "threads": torch.get_num_threads(),
        "threads_between": torch.get_num_interop_threads(),
    }


def source() -> dict[str, Any]:
    """The `commit` of this package, and whether it is `dirty`: changed since.

    Without a checkout the commit is the one that pip was given, as in `pip install git+https://...`
    (PEP 610), and both are None if that is not known either, as of a released version.
    """
    found = code()
    return found if found["commit"] else {"commit": _installed_from(), "dirty": None}


def _installed_from() -> str | None:
    try:
        text = importlib.metadata.distribution("localsgd").read_text("direct_url.json")
        return json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
    except (importlib.metadata.PackageNotFoundError, ValueError, AttributeError):
        return None
