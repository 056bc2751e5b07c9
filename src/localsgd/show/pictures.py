"""Runs as pictures, in files and as text."""

from __future__ import annotations

from localsgd.show.plot_comparison import comparison
from localsgd.show.plot_run import run
from localsgd.show.strips import text

__all__ = ["comparison", "run", "text"]
