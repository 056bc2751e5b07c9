"""The machine, torch's build and the code's commit, which a result depends on.

Equal seeds promise equal bits on machines of one kind: the same processor model and instruction
sets, as many threads, the same build of torch. Another kind rounds differently.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

PACKAGE = Path(__file__).parents[2]
INSTRUCTIONS = re.compile(
    r"avx2|fma|avx512f|avx512_bf16|avx512_fp16|amx_\w+|asimd\w*|bf16|i8mm|sve2?"
)
"""Instruction sets that kernels depend on; oneDNN has different bfloat16 kernels with them."""


def machine() -> dict[str, Any]:
    """The machine and how torch uses it, as JSON.

    The keys: `system`, `cpu` (model), `cores`, `instructions` (the sets that kernels are chosen
    by), `threads` (of torch in this process), `torch` (version), `torch_build` (what its CPU
    kernels are built with and use) and, if there is one, `gpu`.
    """
    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": processor(),
        "cores": os.cpu_count(),
        "instructions": instructions(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "torch_build": torch_build(),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def code(*folders: Path) -> dict[str, Any]:
    """The commit of this package and whether its Python files differ from it, as JSON.

    Both are `None` if the package is no part of a git checkout. It is looked up once: what the
    process has imported doesn't change with the checkout.

    Args:
        folders: more folders of the same checkout whose Python files count.
    """
    return dict(_code(folders))


def processor() -> str:
    """The processor's name, as far as the system gives it."""
    return _cpu_line("model name") or platform.processor() or platform.machine()


def instructions() -> list[str]:
    """The processor's instruction sets that kernels depend on, if the system lists them."""
    words = (_cpu_line("flags") or _cpu_line("Features")).split()
    return sorted(word for word in set(words) if INSTRUCTIONS.fullmatch(word))


@cache
def torch_build() -> str:
    """The libraries of torch's CPU kernels, and the instruction set that they use."""
    lines = [line.strip(" -") for line in torch.__config__.show().splitlines()]
    wanted = ("CPU capability", "Intel(R) oneAPI", "Intel(R) MKL-DNN", "OpenMP")
    kept = [line for line in lines if line.startswith(wanted)]
    return "; ".join([*kept, f"commit {torch.version.git_version}"])


@cache
def _cpu_line(name: str) -> str:
    """The entry `name` of the first processor in the system's list; empty if it has none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


@cache
def _code(folders: tuple[Path, ...]) -> dict[str, Any]:
    tracked = _git("ls-files", "--error-unmatch", "--", "__init__.py")
    commit = _git("rev-parse", "HEAD") if tracked else None
    if commit is None:
        return {"commit": None, "dirty": None}
    paths = [str(folder.resolve() / "**" / "*.py") for folder in (PACKAGE, *folders)]
    changed = _git("status", "--porcelain", "--", *(f":(glob){path}" for path in paths))
    return {"commit": commit.strip(), "dirty": None if changed is None else bool(changed)}


def _git(*words: str) -> str | None:
    """What git prints in the package's folder; `None` where it fails or isn't there.

    Only the package's own checkout is asked, never the folder where one stands, and no program that
    its settings name is started.
    """
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *words]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        found = subprocess.run(
            command, cwd=PACKAGE, env=variables, capture_output=True, text=True, check=True,
            timeout=10, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout
