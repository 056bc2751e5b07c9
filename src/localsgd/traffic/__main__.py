"""`python -m localsgd.traffic` prints the tables of docs/cost-model.md."""

from __future__ import annotations

from localsgd.traffic.tables import page

print("\n\n".join(f"## {title}\n\n{table}" for title, table in page().items()))
