from __future__ import annotations

from pathlib import Path

import pytest

from localsgd.tasks.places import advice, places


def test_what_is_given_comes_before_the_environment_and_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Path.home() / ".cache" / "localsgd"
    given, named = tmp_path / "given", tmp_path / "named"
    assert places(None) == (cache,)
    assert places(given) == (given, cache)
    monkeypatch.setenv("LOCALSGD_DATA", str(named))
    assert places(None) == (named, cache)
    assert places(given) == (given, named, cache)
    monkeypatch.setenv("LOCALSGD_DATA", "")
    assert places(None) == (cache,)


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSGD_DATA", "~/data")
    assert places(None)[0] == Path.home() / "data"
    assert places(Path("~/more"))[0] == Path.home() / "more"


def test_advice_names_the_first_place(tmp_path: Path) -> None:
    assert advice("the folder x", tmp_path).startswith(f"put the folder x into {tmp_path}, or ")
