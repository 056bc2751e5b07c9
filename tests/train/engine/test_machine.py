"""What is said of the machine and the code."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from localsgd.train.engine import machine
from localsgd.train.engine.machine import code, torch_build


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a package of one committed file, which the module takes for its own."""
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("A = 1\n")
    monkeypatch.setattr(machine, "PACKAGE", package)
    monkeypatch.setattr(machine, "_code", machine._code.__wrapped__)
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "one")):
        subprocess.run([*git, *words], check=True, timeout=60)
    return tmp_path


def test_machine_is_json_and_says_how_torch_computes() -> None:
    found = json.loads(json.dumps(machine.machine()))
    assert {"system", "cpu", "cores", "instructions", "threads", "torch", "torch_build"} <= set(
        found
    )
    assert found["threads"] == torch.get_num_threads()
    assert str(torch.version.git_version) in torch_build()


def test_instructions_of_both_kinds_of_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {"flags": "fpu sse2 avx2 amx_bf16 avx512_bf16"}
    monkeypatch.setattr(machine, "_cpu_line", lambda name: lines.get(name, ""))
    assert machine.instructions() == ["amx_bf16", "avx2", "avx512_bf16"]
    lines.clear()
    lines["Features"] = "fp asimd bf16 sve"
    assert machine.instructions() == ["asimd", "bf16", "sve"]
    lines.clear()
    assert machine.instructions() == []


def test_commit_of_a_clean_checkout(checkout: Path) -> None:
    found = code()
    assert found["dirty"] is False
    assert len(found["commit"]) == 40


def test_changed_and_new_python_files_are_dirty(checkout: Path) -> None:
    package, beside = checkout / "src" / "package", checkout / "beside"
    beside.mkdir()
    (beside / "more.py").touch()
    (package / "notes.txt").touch()
    assert code()["dirty"] is False
    assert code(beside)["dirty"] is True
    (package / "__init__.py").write_text("A = 2\n")
    assert code()["dirty"] is True


def test_settings_of_a_repository_start_no_program(checkout: Path) -> None:
    marker = checkout / "executed"
    setting = ("config", "core.fsmonitor", f"touch {marker}; false")
    subprocess.run(["git", "-C", str(checkout), *setting], check=True, timeout=60)
    assert code()["dirty"] is False
    assert not marker.exists()


def test_all_of_the_package_counts() -> None:
    assert (machine.PACKAGE / "version.py").is_file()


def test_a_package_that_is_only_installed_has_no_commit(checkout: Path) -> None:
    """An environment inside another project's checkout isn't that project's code."""
    installed = checkout / "env" / "package"
    shutil.copytree(checkout / "src" / "package", installed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "PACKAGE", installed)
        assert code() == {"commit": None, "dirty": None}
