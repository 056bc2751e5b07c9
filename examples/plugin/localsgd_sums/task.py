"""Sums in words: `two and three are five .`

T: words of a segment
"""

from __future__ import annotations

from pathlib import Path

import torch

from localsgd.train import Entry, TensorTask, task_of
from localsgd.train.data.task import Defaults

NUMBERS = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
]
WORDS = [*NUMBERS, "and", "are", "."]
LENGTH = 18  # T, three sentences


def text(sentences: int, seed: int) -> list[int]:
    """The words, as numbers, of so many sums."""
    draw = torch.Generator().manual_seed(seed)
    pairs = torch.randint(10, (sentences, 2), generator=draw).tolist()
    lines = [f"{NUMBERS[a]} and {NUMBERS[b]} are {NUMBERS[a + b]} ." for a, b in pairs]
    return [WORDS.index(word) for line in lines for word in line.split()]


def segments(sentences: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Segments [N, T] and the words that follow each of theirs [N, T]."""
    words = torch.tensor(text(sentences, seed))
    count = (len(words) - 1) // LENGTH
    inputs, following = words[: count * LENGTH], words[1 : count * LENGTH + 1]
    return inputs.view(count, LENGTH), following.view(count, LENGTH)


def sums() -> TensorTask:
    return task_of(
        "sums",
        train=segments(1201, seed=0),
        test=segments(301, seed=1),
        defaults=Defaults(
            epochs=20, batch=8, learning_rate=0.1, lr_batch=8, weight_decay=1e-3, clip=1.0
        ),
        model="tiny-gpt",
    )


ENTRY = Entry(
    card=sums().card,
    find=lambda data_dir: Path(__file__).parent,
    load=lambda source: sums().to(source.device),
)
