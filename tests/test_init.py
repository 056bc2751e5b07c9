"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import localsgd

HEAVY = ["PIL", "scipy", "sklearn", "matplotlib", "msgspec", "rich", "safetensors", "tyro"]


def test_names_are_there() -> None:
    for name in localsgd.__all__:
        assert getattr(localsgd, name) is not None
    assert list(localsgd.__all__) == sorted(localsgd.__all__)


def test_the_trainer_is_not_loaded() -> None:
    code = """
import sys, localsgd
assert not [name for name in sys.modules if name.startswith(("localsgd.train", "localsgd.cli"))]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_torch_and_numpy_are_enough() -> None:
    code = f"""
import sys
for name in {HEAVY}:
    sys.modules[name] = None  # importing it raises
import localsgd
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
