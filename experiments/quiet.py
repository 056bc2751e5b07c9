"""An observer for runs without output."""

from __future__ import annotations

from localsgd.train.engine.observer import Observer


class Quiet(Observer):
    """An observer that does nothing."""
