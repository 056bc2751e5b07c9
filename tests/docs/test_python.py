"""The page on runs from Python: all its code runs, as the cells of one notebook."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.timeout(600)
def test_the_cells_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(cells) > 5
    names: dict[str, object] = {"__name__": "notebook"}
    for number, cell in enumerate(cells):
        if "load(" in cell:  # the folder that the page has spoken of
            exec("run.train('runs/mine', progress=False)", names)
        exec(compile(cell, f"cell {number}", "exec"), names)
    assert torch.is_tensor(names["result"].weights["1.weight"])  # type: ignore[attr-defined]
    assert set(names["scores"]) == {1, 8}  # type: ignore[call-overload]


def test_the_graph_on_the_page_on_gossip_comes_together() -> None:
    text = PAGE.with_name("methods").joinpath("gossip.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(compile(code, "gossip.md", "exec"), {})
