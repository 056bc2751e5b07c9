"""A small transformer.

B: samples of a batch · T: words of a segment · D: width
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from localsgd.train.data.task import Task


class TinyGpt(nn.Module):
    """Scores [B, T, words] of the word after each one, from it and all before it in [B, T]."""

    def __init__(self, words: int, length: int, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.words(tokens) + self.places(torch.arange(length, device=tokens.device))
        later = torch.full((length, length), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=later)
        return self.head(self.norm(x))


def tiny_gpt(task: Task, width: int = 32, layers: int = 2) -> nn.Module:
    return TinyGpt(task.classes, task.input_shape[0], width, layers)
