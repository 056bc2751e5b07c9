"""Language modelling: the next word of a text that is held as one tensor of tokens.

B: samples of a batch · T: tokens of a segment · V: words · N: segments of a text
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localsgd.errors import UserError
from localsgd.train.data.models.lstm import State
from localsgd.train.data.task import Task

STREAMS = 64
"""Streams, at most, into which the test text is cut to be judged."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class TextTask(Task):
    """A training and a test text; a sample is a segment of T tokens with the T that follow.

    Sample i is followed by sample i + 1, and the last by the first: segments do not overlap, and
    up to T - 1 tokens at the end of a text are in none. Judged by mean cross-entropy over all
    targets; the perplexity is exp of it.

    Args:
        train, test: tokens int64.
        segments: which of the training segments are samples, in order; all if not given.
    """

    train: Tensor
    test: Tensor
    segments: Tensor | None = None

    def __post_init__(self) -> None:
        length = self.input_shape[0]
        found = count_segments(len(self.train), length), count_segments(len(self.test), length)
        if self.segments is not None:
            found = len(self.segments), found[1]
        if found != (self.train_size, self.test_size):
            raise ValueError(f"{self.name}: {found} segments for {self.card}")

    def to(self, device: torch.device | str) -> TextTask:
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def train_batch(
        self, indices: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        if self.segments is not None:
            indices = self.segments[indices]
        return self._cut(self.train, indices)

    def test_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self._cut(self.test, indices)

    def _cut(self, text: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        """Segments, and the tokens that follow each of theirs: two of [B, T]."""
        length = self.input_shape[0]
        segments = segments.to(text.device, non_blocking=True)
        count = count_segments(len(text), length)
        inputs = text[: count * length].view(count, length)
        targets = text[1 : count * length + 1].view(count, length)
        return inputs[segments], targets[segments]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), target.flatten())

    def correct(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.argmax(-1) == target).sum()

    def subset(self, train: int, seed: int = 0) -> TextTask:
        """`train` segments in a row, from a place that `seed` draws on; all of the test text."""
        if not 1 <= train <= self.train_size:
            raise UserError(
                f"a subset of {train:,} segments cannot be taken; 1 to {self.train_size:,} can"
            )
        first = np.random.RandomState(seed).randint(self.train_size)
        chosen = (first + torch.arange(train)) % self.train_size
        if self.segments is not None:
            chosen = self.segments[chosen]
        return replace(self, card=replace(self.card, train_size=train), segments=chosen)

    def mixed(self, count: int) -> Tensor:
        """As they lie: any part of a text is like the whole."""
        return torch.arange(count)

    @property
    def pieces(self) -> int:
        """Streams: equal parts of the test text, give or take a segment."""
        return min(STREAMS, self.test_size)

    @property
    def judged_together(self) -> int:
        return STREAMS

    @torch.no_grad()
    def judge(self, model: nn.Module, pieces: Tensor) -> Tensor:
        """Each stream from its beginning, with a state of zeros, to its end.

        A model that has no `advance` is asked segment by segment.
        """
        bounds = torch.arange(self.pieces + 1) * self.test_size // self.pieces
        first, last = bounds[pieces], bounds[pieces + 1]
        order = (last - first).argsort(descending=True, stable=True)  # short ones drop out last
        first, lengths = first[order], (last - first)[order]
        sums = torch.zeros(3, dtype=torch.float64)
        state: State | None = None
        advance: Any = getattr(model, "advance", lambda x, _: (model(x), None))
        for step in range(int(lengths[0]) if len(pieces) else 0):
            active = int((lengths > step).sum())
            if state is not None:
                state = state[0][:, :active].contiguous(), state[1][:, :active].contiguous()
            x, y = self.test_batch(first[:active] + step)
            output, state = advance(x, state)
            sums += self.verdict(output, y, model)
        return sums


def count_segments(tokens: int, length: int) -> int:
    """Segments of a text, each with `length` targets."""
    return max(0, tokens - 1) // length
