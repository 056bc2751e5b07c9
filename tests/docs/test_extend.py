"""The pages on parts of one's own: the code of each is complete, runs, and ends in its check."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

import localsgd.testing
from tests.distributed.harness import run

FOLDER = Path(__file__).parents[2] / "docs" / "extend"
PAGES = sorted(page.stem for page in FOLDER.glob("*.md") if page.stem != "README")
PROCESSES = {"collective": 2}
"""Pages whose code is for several at once."""


def code_of(page: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", (FOLDER / f"{page}.md").read_text(), re.S))


def execute(page: str) -> None:
    """As a module of its own, as dataclasses look theirs up."""
    module = types.ModuleType(f"extend_{page.replace('-', '_')}")
    sys.modules[module.__name__] = module
    try:
        exec(compile(code_of(page), f"{page}.md", "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]


@pytest.mark.usefixtures("own_names")
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page: str) -> None:
    if page in PROCESSES:
        run(PROCESSES[page], execute, page)
    else:
        execute(page)


def test_every_check_ends_a_page_and_is_in_the_table() -> None:
    table = (FOLDER / "README.md").read_text()
    pages = {page: code_of(page) for page in PAGES}
    for check in localsgd.testing.__all__:
        assert f"`{check}`" in table
        assert any(f"\n{check}(" in code for code in pages.values())
    for page in PAGES:
        assert f"({page}.md)" in table


def test_files_and_tables_that_the_pages_name_are_there() -> None:
    root = FOLDER.parents[1]
    text = "\n".join(page.read_text() for page in FOLDER.glob("*.md"))
    for path in set(re.findall(r"`(src/[\w/]+\.py)`", text)):
        assert (root / path).exists(), path
    table = (FOLDER / "README.md").read_text()
    for names, path in re.findall(r"(`[A-Z_`, a-z]+`) in `(src/[\w/]+\.py)`", table):
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^{name}\b", (root / path).read_text(), re.M), f"{name} in {path}"
