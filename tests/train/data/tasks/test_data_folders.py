from __future__ import annotations

from pathlib import Path

import pytest

from localsgd.train.data.tasks.data_folders import advice, data_folders


def test_what_is_given_comes_before_the_environment_and_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Path.home() / ".cache" / "localsgd"
    given, named = tmp_path / "given", tmp_path / "named"
    assert data_folders(None) == (cache,)
    assert data_folders(given) == (given, cache)
    monkeypatch.setenv("LOCALSGD_DATA", str(named))
    assert data_folders(None) == (named, cache)
    assert data_folders(given) == (given, named, cache)
    monkeypatch.setenv("LOCALSGD_DATA", "")
    assert data_folders(None) == (cache,)


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSGD_DATA", "~/data")
    assert data_folders(None)[0] == Path.home() / "data"
    assert data_folders(Path("~/more"))[0] == Path.home() / "more"


def test_advice_names_the_first_place(tmp_path: Path) -> None:
    assert advice("the folder x", tmp_path).startswith(f"put the folder x into {tmp_path}, or ")
