"""A small text that is made up, for runs that only show that everything works."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from localsgd.train.data.tasks.wikitext import FOLDER, TRAIN, VALID

WORDS = 80
LINES = {TRAIN: 1500, VALID: 200}
LINE = 16


def text(folder: Path) -> Path:
    """`folder` with a text in WikiText's layout: each word has a few likely successors."""
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    likely = rng.integers(WORDS, size=(WORDS, 4))
    for name, lines in LINES.items():
        content = "\n".join(_line(rng, likely) for _ in range(lines)) + "\n"
        partial = place / f"{name}.{os.getpid()}"
        partial.write_text(content)
        os.replace(partial, place / name)
    return folder


def _line(rng: np.random.Generator, likely: np.ndarray) -> str:
    word, words = int(rng.integers(WORDS)), []
    for _ in range(LINE):
        words.append(f"w{word}")
        word = int(likely[word, rng.integers(4)])
    return " ".join(words)
