"""A text with a smaller vocabulary, for language models that a CPU trains."""

from __future__ import annotations

from dataclasses import replace

import torch

from localsgd.errors import UserError
from localsgd.train.data.task import Task
from localsgd.train.data.tasks.text import TextTask


def common_words(task: Task, words: int) -> TextTask:
    """`task` with the `words` - 1 most frequent words of its training segments, and one word for
    all others. Perplexities are over this vocabulary, and lower than over the whole one.
    """
    if not isinstance(task, TextTask):
        raise UserError(f"the task {task.name} is no text; leave out the number of words")
    if not 2 <= words <= task.classes:
        raise UserError(f"{words:,} words cannot be taken; 2 to {task.classes:,} can")
    seen, _ = task.train_batch(torch.arange(task.train_size), None)
    counts = torch.bincount(seen.flatten(), minlength=task.classes)
    kept = torch.argsort(counts, descending=True, stable=True)[: words - 1]
    number = torch.full((task.classes,), words - 1)
    number[kept] = torch.arange(words - 1)
    card = replace(task.card, classes=words)
    return replace(task, card=card, train=number[task.train], test=number[task.test])
