"""`python -m experiments.cost_model` prints the tables of docs/cost-model.md."""

from __future__ import annotations

from experiments.cost_model.tables import page

print("\n\n".join(f"## {title}\n\n{table}" for title, table in page().items()))
