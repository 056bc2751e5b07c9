"""The page of the documentation shows what the package computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.cost_model.tables import page

DOCS = Path(__file__).parents[3] / "docs" / "cost-model.md"


@pytest.mark.parametrize(("title", "table"), page().items())
def test_the_documentation_has_each_table(title: str, table: str) -> None:
    assert table in DOCS.read_text(), (
        f"{title}: print it anew with python -m experiments.cost_model"
    )
