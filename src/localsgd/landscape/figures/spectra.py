"""Figures of Hessian spectra: top eigenvalues, densities, lambda_max along training, sharpness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from localsgd.landscape.density import Density
from localsgd.landscape.figures.style import colour, dash, legend, panels, place_of, with_default

MATRICES = {"hessian": "Hessian", "gauss-newton": "Gauss-Newton matrix", "fisher": "Fisher matrix"}

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]
SHARPNESS = {
    "largest": "λ max",
    "times_norm": "λ max ‖w‖²",
    "filter_wise": "λ max, by filter",
    "worst_rise": "worst in ball",
    "filter_worst_rise": "worst, by filter",
}


def eigenvalues(records: list[Record]) -> Figure:
    """Eigenvalues by rank, a line a model and data set, with their residuals as bars."""
    figure, (axes,) = panels()
    models, sets = _keys(records, "model"), _keys(records, "data")
    for record in records:
        ranks = range(1, len(record["values"]) + 1)
        axes.errorbar(
            ranks,
            record["values"],
            yerr=record["residuals"],
            marker="o",
            markersize=3,
            linewidth=1,
            linestyle=dash(sets[record.get("data")]),
            color=colour(models[record.get("model")]),
            label=_label(record),
        )
    matrices = {record.get("curvature", "hessian") for record in records}
    names = ", ".join(sorted(MATRICES.get(name, name) for name in matrices))
    axes.set(xlabel="rank", ylabel=f"eigenvalue of the {names}")
    legend(axes)
    return figure


def density(records: list[Record]) -> Figure:
    """Spectral densities, each node a narrow Gaussian, on a logarithmic scale."""
    figure, (axes,) = panels()
    models, sets = _keys(records, "model"), _keys(records, "data")
    peaks = []
    for record in records:
        one = Density(
            torch.tensor(record["nodes"], dtype=torch.float64),
            torch.tensor(record["weights"], dtype=torch.float64),
            record["products"],
            record["n"],
        )
        t, values = one.curve()
        peaks.append(float(values.max()))
        axes.plot(
            t,
            values,
            linewidth=1,
            linestyle=dash(sets[record.get("data")]),
            color=colour(models[record.get("model")]),
            label=_label(record),
        )
    axes.set(xlabel="eigenvalue", ylabel="density", yscale="log")
    axes.set_ylim(1e-7 * min(peaks), 3 * max(peaks))
    legend(axes)
    return figure


def history(records: list[Record]) -> Figure:
    """lambda_max by epoch, a panel a data set, a line a model."""
    sets = _keys(records, "data")
    figure, all_axes = panels(len(sets))
    models = _keys(records, "model")
    for data, axes in zip(sets, all_axes, strict=True):
        for model in models:
            rows = [r for r in records if (r.get("data"), r.get("model")) == (data, model)]
            rows.sort(key=lambda r: r["epoch"])
            axes.plot(
                [r["epoch"] for r in rows],
                with_default(r["largest"] for r in rows),
                marker=".",
                color=colour(models[model]),
                label=model,
            )
        axes.set(xlabel="epoch", ylabel="largest eigenvalue", yscale="log", title=data or "")
        legend(axes)
    return figure


def sharpness(records: list[Record]) -> Figure:
    """Plain and scale-free figures relative to the first model's, a panel a data set."""
    sets = _keys(records, "data")
    figure, all_axes = panels(len(sets))
    for data, axes in zip(sets, all_axes, strict=True):
        rows = [record for record in records if record.get("data") == data]
        width = 0.8 / len(rows)
        for index, record in enumerate(rows):
            heights = [record[name] / rows[0][name] if rows[0][name] else 0.0 for name in SHARPNESS]
            places = [i + (index - (len(rows) - 1) / 2) * width for i in range(len(SHARPNESS))]
            axes.bar(places, heights, width, color=colour(index), label=record.get("model"))
        axes.set_xticks(range(len(SHARPNESS)), SHARPNESS.values(), rotation=20, ha="right")
        axes.tick_params(axis="x", labelsize=8)
        axes.set(ylabel=f"relative to {rows[0].get('model') or 'the first'}", title=data or "")
        legend(axes)
    return figure


def _keys(records: list[Record], key: str) -> dict[Any, int]:
    return place_of(record.get(key) for record in records)


def _label(record: Record) -> str | None:
    parts = [record[key] for key in ("model", "data") if record.get(key)]
    return ", ".join(parts) or None
