"""What the page on design says of the rooms is what lint holds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "design.md").read_text()


def test_the_floors_on_the_page_are_those_that_lint_holds() -> None:
    rooms = PAGE[PAGE.index("## Rooms") :]
    drawn = re.findall(r"```text\n(.*?)```", rooms, re.S)[0].splitlines()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [floors] = [one for one in settings["contracts"] if one["id"] == "floors"]
    assert drawn == floors["layers"]


def test_every_file_that_the_page_names_is_there() -> None:
    sources = ROOT / "src" / "localsgd"
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", PAGE))
    missing = [name for name in named if not any((at / name).exists() for at in (ROOT, sources))]
    assert len(named) > 20
    at_the_top = {path.name for path in sources.glob("*.py")}
    assert set(re.findall(r"`([a-z_]+\.py)`", PAGE)) <= at_the_top  # others with their folder
    assert not missing
