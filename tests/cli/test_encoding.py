"""A terminal whose encoding lacks what the output draws with."""

from __future__ import annotations

import io
import sys

import pytest

from localsgd.cli.main import main


def test_characters_that_the_terminal_lacks_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert main(["tasks"]) == 0
    print("H → 8 …", flush=True)
    assert b"H ? 8 ?" in written.getvalue()
