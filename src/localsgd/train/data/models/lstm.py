"""Language models of stacked LSTM layers (Hochreiter and Schmidhuber, 1997), for streams of text.

B: streams of a batch · T: tokens of a segment · L: layers · D: width · V: words
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localsgd.train.data.task import Task

NAMES = ("lstm", "lstm-tied", "lstm-1x64")
LAYERS, WIDTH = 3, 650
DROPOUT = 0.4
RANGE = 0.1
"""Embeddings start between minus and plus this (Merity et al., 2018)."""

State = tuple[Tensor, Tensor]
"""Outputs and cells of all layers, [L, B, D] each."""


def parse(name: str) -> Callable[[Task], nn.Module] | None:
    """`lstm` (3 layers of 650) or `lstm-LAYERSxWIDTH`, and either with `-tied`."""
    match = re.fullmatch(r"lstm(?:-([1-9]\d*)x([1-9]\d*))?(-tied)?", name)
    if match is None:
        return None
    layers, width = int(match[1] or LAYERS), int(match[2] or WIDTH)
    return lambda task: LSTM(task.classes, layers, width, tied=match[3] is not None)


@final
class LSTM(nn.Module):
    """Scores [B, T, V] of the word after each token [B, T], from it and all before it.

    Embeddings, `layers` LSTM layers of one width, dropout (0.4) on the output of the last, and a
    linear layer, whose weights are with `tied` those of the embeddings (Press and Wolf, 2017).

    A model that was made to `carry` B streams goes on in training where its last batch ended: row b
    of a batch is the next segment of stream b. What it carries lies in the buffers `outputs` and
    `cells`, which are no part of the state dict: they belong to the worker that trains, are neither
    averaged nor exported, and no gradient flows into them. In evaluation, and without streams,
    every batch starts from zeros.
    """

    def __init__(self, words: int, layers: int, width: int, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.dropout = nn.Dropout(DROPOUT)
        self.head: nn.Module = Tied(words) if tied else nn.Linear(width, words)
        self.outputs: Tensor
        self.cells: Tensor
        self.carry(0)
        nn.init.uniform_(self.embedding.weight, -RANGE, RANGE)

    def carry(self, streams: int) -> None:
        """From now on training carries the state of so many streams, starting from zeros."""
        for name, tensor in zip(("outputs", "cells"), self._zeros(streams), strict=True):
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        if not (self.training and self.outputs.shape[1]):
            return self.advance(tokens)[0]
        # Copies, since the buffers are overwritten before the backward pass has read them.
        scores, state = self.advance(tokens, (self.outputs.clone(), self.cells.clone()))
        for kept, new in zip((self.outputs, self.cells), state, strict=True):
            kept.copy_(new.detach())
        return scores

    def advance(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Scores of the next segment of B streams, and where it leaves them. Changes nothing."""
        if state is None:
            state = self._zeros(len(tokens))
        hidden, state = self._layers(self.embedding(tokens), state)
        hidden = self.dropout(hidden)
        if isinstance(self.head, Tied):
            return self.head(hidden, self.embedding.weight), state
        return self.head(hidden), state

    def _layers(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        if x.device.type != "cpu":
            return self.lstm(x, state)
        with torch.autocast("cpu", enabled=False):  # which has no LSTM in bfloat16
            return self.lstm(x, state)

    def _zeros(self, streams: int) -> State:
        like, shape = self.embedding.weight, (self.lstm.num_layers, streams, self.lstm.hidden_size)
        return like.new_zeros(shape), like.new_zeros(shape)


@final
class Tied(nn.Module):
    """A linear layer with the weights [V, D] of another one, and a bias of its own."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.linear(hidden, weight, self.bias)
