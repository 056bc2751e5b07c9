"""The environment that a run's bits may depend on: code, machine, and torch's build."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from localsgd.version import __version__

_SETS = ("sse", "avx", "amx", "fma", "f16c", "neon", "asimd", "sve", "bf16", "i8mm")
"""Prefixes of instruction sets that sums and products depend on."""


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
        "instruction_sets": instruction_sets(),
        "torch_instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "processes": processes,
        "threads": torch.get_num_threads(),
        "threads_between": torch.get_num_interop_threads(),
    }


def source() -> dict[str, Any]:
    """The `commit` of this package, and whether it is `dirty`: changed since.

    Both are None if that is not known, as of a released version. Only the package's own checkout
    is asked, never the folder where one stands, whose git settings may name programs.
    """
    here = Path(__file__).resolve().with_name("__init__.py")
    if _git(here, "ls-files", "--error-unmatch", here.name) is not None:
        changes = _git(here, "status", "--porcelain", "--untracked-files=no")
        dirty = None if changes is None else bool(changes)
        return {"commit": _git(here, "rev-parse", "HEAD"), "dirty": dirty}
    return {"commit": _installed_from(), "dirty": None}


def _git(file: Path, *words: str) -> str | None:
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *words]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        found = subprocess.run(
            command, cwd=file.parent, env=variables, capture_output=True, text=True, check=True,
            timeout=10, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def _installed_from() -> str | None:
    """The commit that pip was given, as in `pip install git+https://...` (PEP 610)."""
    try:
        text = importlib.metadata.distribution("localsgd").read_text("direct_url.json")
        return json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
    except (importlib.metadata.PackageNotFoundError, ValueError, AttributeError):
        return None


def processor() -> str:
    """The processor's name, as far as the system gives it."""
    return _told_of_processor("model name") or platform.processor() or platform.machine()


def instruction_sets() -> list[str]:
    """The processor's instruction sets for arithmetic; empty if the system doesn't list them."""
    words = (_told_of_processor("flags") or _told_of_processor("Features") or "").split()
    return sorted({word for word in words if word.startswith(_SETS)})


def _told_of_processor(name: str) -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.partition(":")[0].strip() == name:
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return None
