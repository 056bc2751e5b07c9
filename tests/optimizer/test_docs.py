"""The page on LocalSGD: its loop runs, and what it prints is what comes out."""

from __future__ import annotations

import doctest
from pathlib import Path

import localsgd
from localsgd.optimizer import local_sgd

PAGE = Path(__file__).parents[2] / "docs" / "optimizer.md"


def test_examples_in_docstrings_run() -> None:
    for module in (localsgd, local_sgd):
        assert doctest.testmod(module).failed == 0


def test_examples_on_the_page_run() -> None:
    examples = doctest.DocTestParser().get_doctest(PAGE.read_text(), {}, "page", None, None)
    assert examples.examples
    assert doctest.DocTestRunner().run(examples).failed == 0


def test_every_argument_is_on_the_page() -> None:
    text = PAGE.read_text()
    for argument in ("local_steps", "topology", "agree_on", "reducers", "outers", "start", "timeout"):
        assert f"`{argument}" in text or f"{argument}=" in text
