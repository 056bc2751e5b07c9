"""A terminal whose encoding lacks what the output draws with, or a reader that leaves."""

from __future__ import annotations

import io
import os
import sys

import pytest

from localsgd.cli.main import main


def test_characters_that_the_terminal_lacks_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert main(["tasks"]) == 0
    print("H → 8 …", flush=True)
    assert b"H ? 8 ?" in written.getvalue()


def test_a_reader_that_leaves_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `localsgd tasks | head -1` does."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["tasks"]) == 0
    assert sys.stdout is stream
    stream.close()
