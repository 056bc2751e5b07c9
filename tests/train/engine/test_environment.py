from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from localsgd.train.engine import environment
from localsgd.train.engine.environment import instruction_sets, source


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True, timeout=30
    ).stdout.strip()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of a package whose `environment` is asked."""
    git(tmp_path, "init", "-q")
    (tmp_path / "__init__.py").write_text("")
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "environment.py"))
    return tmp_path


def test_the_commit_and_whether_it_was_changed_since(package: Path) -> None:
    assert source() == {"commit": None, "dirty": None}  # a folder of another repository, untracked
    git(package, "add", ".")
    git(package, "commit", "-qm", "one")
    found = {"commit": git(package, "rev-parse", "HEAD")}
    assert source() == found | {"dirty": False}
    (package / "untracked").write_text("")
    assert source() == found | {"dirty": False}
    (package / "__init__.py").write_text("changed")
    assert source() == found | {"dirty": True}


def test_settings_of_a_repository_start_no_program(package: Path) -> None:
    git(package, "add", ".")
    git(package, "commit", "-qm", "one")
    marker = package / "executed"
    git(package, "config", "core.fsmonitor", f"touch {marker}; false")
    assert source()["dirty"] is False
    assert not marker.exists()


def test_the_machine() -> None:
    found = json.loads(json.dumps(environment.environment(torch.device("cpu"), 3)))
    assert found["processes"] == 3
    assert found["threads"] == torch.get_num_threads()
    assert found["torch_commit"] == torch.version.git_version
    assert any("GCC" in line or "Clang" in line.title() for line in found["torch_build"])
    assert found["instruction_sets"] == instruction_sets()
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    if " avx2 " in flags:
        assert "avx2" in found["instruction_sets"]
