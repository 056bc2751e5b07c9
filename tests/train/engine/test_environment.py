from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from localsgd.train.engine import environment
from localsgd.train.engine.machine import instructions


def test_without_a_checkout_the_commit_is_that_of_the_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"commit": "a" * 40, "dirty": True}
    monkeypatch.setattr(environment, "code", lambda: found)
    assert environment.source() == found
    found = {"commit": None, "dirty": None}
    assert environment.source() == found
    told = SimpleNamespace(read_text=lambda name: json.dumps({"vcs_info": {"commit_id": name}}))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: told)
    assert environment.source() == {"commit": "direct_url.json", "dirty": None}


def test_the_machine() -> None:
    found = json.loads(json.dumps(environment.environment(torch.device("cpu"), 3)))
    assert found["processes"] == 3
    assert found["threads"] == torch.get_num_threads()
    assert found["torch_commit"] == torch.version.git_version
    assert any("GCC" in line or "Clang" in line.title() for line in found["torch_build"])
    assert found["instruction_sets"] == instructions()
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    if " avx2 " in flags:
        assert "avx2" in found["instruction_sets"]
