"""Figures made from records, a file for each kind of record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localsgd.landscape.figures import lines, maps, spectra
from localsgd.landscape.figures.style import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES: Mapping[str, Callable[[list[dict[str, Any]]], Figure]] = {
    "eigenvalues": spectra.eigenvalues,
    "density": spectra.density,
    "largest eigenvalue": spectra.history,
    "sharpness": spectra.sharpness,
    "curve": lines.curves,
    "interpolation": lines.interpolation,
    "step noise": lines.noise,
    "drift": lines.drift,
    "surface": maps.surfaces,
    "plane": maps.planes,
}


def draw(
    records: Iterable[Mapping[str, Any]], folder: str | Path, *, ending: str = "png"
) -> list[Path]:
    """Draw every kind among the records that has a figure; gives the files, named by kind."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        by_kind.setdefault(record["kind"], []).append(dict(record))
    return [
        save(FIGURES[kind](rows), folder / f"{kind.replace(' ', '_')}.{ending}")
        for kind, rows in by_kind.items()
        if kind in FIGURES
    ]


__all__ = ["FIGURES", "draw"]
